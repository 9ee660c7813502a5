// Package ldap asks an LDAP directory whether a user's password is right, and which groups the
// user is in.
//
// A login is one connection: search for the user's entry, bind as that entry with the password,
// search for the groups. A correct password is remembered for some minutes, and wrong ones are
// limited by address, as with an htpasswd file.
//
// An answer of the directory that the password is wrong is [passwords.ErrWrong]. Everything that
// keeps the directory from being asked is an *oci.Error UNAVAILABLE: a client that gets it tries
// again, and does not forget its password. No log line and no error contains a password.
package ldap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/passwords"
	"example.org/slipway/registry/auth/recent"
)

// atOnce bounds the connections to the directory.
const atOnce = 16

// User is what the directory says of a user.
type User struct {
	// Name is the user's name as the directory writes it, whatever its case was at the login.
	Name string
	// Groups are the names of the user's groups, in order.
	Groups []string
}

// Options are the dependencies of New. All are required.
type Options struct {
	// Failures counts wrong passwords.
	Failures *recent.Failures
	Logger   *slog.Logger
	Clock    func() time.Time
}

// Directory checks users' passwords. It is safe for concurrent use.
type Directory struct {
	server   *server
	log      *slog.Logger
	clock    func() time.Time
	logins   *passwords.Logins
	verified *recent.Cache[*User]
	failing  atomic.Bool // the directory could not be asked the last time

	total   *prometheus.CounterVec
	seconds prometheus.Histogram
}

// New checks the configuration and reads the files that it names. It does not contact the
// directory, which need not be up. A mistake in the configuration is a *Mistake.
func New(cfg Config, o Options) (*Directory, error) {
	s, err := newServer(cfg.withDefaults())
	if err != nil {
		return nil, err
	}
	d := &Directory{
		server: s, log: o.Logger, clock: o.Clock,
		logins: passwords.NewLogins(atOnce, o.Failures, o.Clock), verified: recent.NewCache[*User](passwords.RememberMost),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "slipway_auth_ldap_logins_total",
			Help: "Passwords that the LDAP directory was asked about, by its answer: success, wrong, or unavailable if it could not be asked."}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "slipway_auth_ldap_seconds",
			Help: "Time to ask the LDAP directory about one password, with the user's groups.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 8)}),
	}
	for _, outcome := range []string{"success", "wrong", "unavailable"} {
		d.total.WithLabelValues(outcome)
	}
	return d, nil
}

// Metrics returns the collectors of the Directory.
func (d *Directory) Metrics() []prometheus.Collector {
	return []prometheus.Collector{d.total, d.seconds}
}

// Verify returns the user with a name and password. The error is passwords.ErrWrong, one of
// [passwords.Logins.Do], or UNAVAILABLE.
func (d *Directory) Verify(ctx context.Context, addr netip.Addr, name, password string) (*User, error) {
	// A directory takes a bind without a password for an anonymous one, and says that it
	// succeeded. SPEC: RFC 4513, section 5.1.2.
	if password == "" || !plain(name) {
		return nil, passwords.ErrWrong
	}
	key := d.logins.Key(name, password)
	var u *User
	err := d.logins.Do(ctx, addr, func() (ok bool) {
		u, ok = d.verified.Get(key, d.clock())
		return ok
	}, func() (err error) {
		if u, err = d.ask(ctx, name, password); err == nil {
			now := d.clock()
			d.verified.Put(key, u, now.Add(passwords.RememberFor), now)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return u, nil
}

// ask asks the directory about a password, and counts and logs the outcome.
func (d *Directory) ask(ctx context.Context, name, password string) (*User, error) {
	began := time.Now()
	u, err := d.server.login(ctx, name, password)
	if err != nil && ctx.Err() != nil {
		return nil, &oci.Error{Code: oci.CodeUnavailable, Message: "the login was given up", Err: context.Cause(ctx)}
	}
	d.seconds.Observe(time.Since(began).Seconds())
	outcome := "success"
	switch {
	case errors.Is(err, passwords.ErrWrong):
		outcome = "wrong"
		if err != passwords.ErrWrong { // it says more
			d.log.Warn("a user of the LDAP directory cannot log in", "url", d.server.cfg.URL, "error", err)
		}
	case err != nil:
		d.total.WithLabelValues("unavailable").Inc()
		return nil, d.unavailable(err)
	}
	d.total.WithLabelValues(outcome).Inc()
	if d.failing.Swap(false) {
		d.log.Info("the LDAP directory can be asked again", "url", d.server.cfg.URL)
	}
	return u, err
}

// unavailable logs why the directory cannot be asked, and returns the error for the
// client. It logs this only once until the directory can be asked again.
func (d *Directory) unavailable(err error) error {
	if !d.failing.Swap(true) {
		d.log.Error("the LDAP directory cannot be asked; its users cannot log in", "url", d.server.cfg.URL, "error", err, "advice", advice(err))
	}
	return &oci.Error{
		Code:    oci.CodeUnavailable,
		Message: "the directory of users cannot be asked at the moment; try again",
		Err:     fmt.Errorf("ask %s: %.300s", d.server.cfg.URL, err.Error()),
	}
}
