package auth

import (
	"errors"
	"reflect"

	"github.com/prometheus/client_golang/prometheus"
)

// These constants name what can be read again while a server runs.
const (
	reloadRules = "rules"
	reloadUsers = "users"
)

// reloads counts what was read again.
type reloads struct {
	audit *AuditLog
	total *prometheus.CounterVec
	stale *prometheus.GaugeVec
}

func newReloads(audit *AuditLog) *reloads {
	r := &reloads{audit: audit,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_auth_reloads_total",
			Help: "Changes of the access rules and the users file that were read, by what changed and whether it could be used."}, []string{"what", "outcome"}),
		stale: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "slipway_auth_stale",
			Help: "1 while the access rules or the users file on disk cannot be used, so that those before the change count."}, []string{"what"})}
	for _, what := range []string{reloadRules, reloadUsers} {
		r.stale.WithLabelValues(what).Set(0)
		for _, outcome := range []string{"success", "failure"} {
			r.total.WithLabelValues(what, outcome)
		}
	}
	return r
}

// note records that something was read again, or could not be.
func (r *reloads) note(what, path string, err error) {
	e := Event{Event: "admin", Outcome: "success", Action: "reload " + what, Reference: path}
	stale := 0.0
	if err != nil {
		e.Outcome, e.Reason, stale = "failure", err.Error(), 1
	}
	r.total.WithLabelValues(what, e.Outcome).Inc()
	r.stale.WithLabelValues(what).Set(stale)
	r.audit.Record(e)
}

// Metrics returns the collectors of the Auth.
func (a *Auth) Metrics() []prometheus.Collector {
	list := []prometheus.Collector{a.reloads.total, a.reloads.stale}
	if a.directory != nil {
		list = append(list, a.directory.Metrics()...)
	}
	return list
}

// Reloaded says what Reload changed.
type Reloaded struct {
	// Rules is the number of access rules, and Users is the number of users with
	// passwords.
	Rules int `json:"rules"`
	Users int `json:"users"`
	// RulesChanged and UsersChanged say what differs from before.
	RulesChanged bool `json:"rules_changed"`
	UsersChanged bool `json:"users_changed"`
	// Restart says that other keys of the section differ, which take effect with a restart.
	Restart bool `json:"restart_needed"`
}

var (
	errRulesGone = errors.New("there are no rules any more, so that every user could do everything; restart the server if that is what you want")
	errRulesNew  = errors.New("there were no rules and no users, so that everybody could do everything; restart the server to change that")
	errTokenMode = errors.New("the rules switch the built-in token service on or off, because they begin or cease to grant something to anonymous; restart the server, or set auth.token.builtin")
)

// Reload replaces the rules by those of cfg, and reads the users file again. A part that
// cannot be used stays as it was, and the error says why; the other part changes all the
// same. Requests under way finish by the rules that they began with.
func (a *Auth) Reload(cfg Config) (Reloaded, error) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	var rep Reloaded
	errRules := a.reloadRules(cfg, &rep)
	var errUsers error
	if a.htpasswd != nil {
		rep.Users, rep.UsersChanged, errUsers = a.htpasswd.Reload()
	}
	return rep, errors.Join(errRules, errUsers)
}

func (a *Auth) reloadRules(cfg Config, rep *Reloaded) error {
	was := a.cfg
	was.Access, cfg.Access = nil, nilIfEmpty(cfg.Access)
	others := cfg
	others.Access = nil
	rep.Restart = !reflect.DeepEqual(was, others)
	old := a.grants.Load()
	rep.Rules = len(old.rules)
	if reflect.DeepEqual(old.rules, cfg.Access) {
		a.reloads.stale.WithLabelValues(reloadRules).Set(0)
		return nil
	}
	now, err := a.compileAgain(cfg.Access)
	if err == nil {
		a.grants.Store(now)
		rep.Rules, rep.RulesChanged = len(now.rules), true
		a.log.Info("access rules read again", "rules", rep.Rules)
	}
	a.reloads.note(reloadRules, "", err)
	return err
}

// compileAgain compiles rules that are to replace those in use.
func (a *Auth) compileAgain(rules []Rule) (*grants, error) {
	cfg := a.cfg
	cfg.Access = rules
	gs, err := compileRules(rules, cfg.groupSources())
	if err != nil {
		return nil, err
	}
	mode, err := cfg.tokenMode(len(gs.anonymous) > 0)
	switch {
	case err != nil:
		return nil, err
	case a.open:
		return nil, mistake("auth.access", "%w", errRulesNew)
	case len(rules) == 0:
		return nil, mistake("auth.access", "%w", errRulesGone)
	case mode != a.mode:
		return nil, mistake("auth.access", "%w", errTokenMode)
	}
	return gs, nil
}

func nilIfEmpty(rules []Rule) []Rule {
	if len(rules) == 0 {
		return nil
	}
	return rules
}

// ReloadFailed notes that the configuration with the rules cannot be read.
func (a *Auth) ReloadFailed(err error) { a.reloads.note(reloadRules, "", err) }

// Rules returns the rules in effect.
func (a *Auth) Rules() []Rule { return a.grants.Load().rules }
