package serve

import (
	"context"
	"errors"
	"os"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/serve/admin"
)

// errNoFile says that a server has no configuration to read again.
var errNoFile = errors.New("this server has no configuration file to read again")

// Reload reads the configuration and the users file again, and applies the access rules,
// the users and the rules of replication. What cannot be used stays as it was. Everything
// else in the configuration takes effect with a restart.
func (s *Server) Reload() (admin.Reloaded, error) {
	if s.reload == nil {
		return admin.Reloaded{}, errNoFile
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	cfg, err := s.reload()
	if err != nil {
		s.auth.ReloadFailed(err)
		s.log.Error("the configuration cannot be used, the rules before the change stay", "err", err)
		return admin.Reloaded{}, err
	}
	var rep admin.Reloaded
	if rep.Reloaded, err = s.auth.Reload(cfg.Auth); err != nil {
		err = authProblem(cfg, err)
		s.log.Error("access rules or users cannot be used, those before the change stay", "err", err)
	}
	if rep.Restart {
		s.log.Warn("other keys of auth have changed; they take effect with a restart")
	}
	changed, rerr := s.root.ReloadReplication(cfg)
	rep.Replication, rep.ReplicationChanged = len(s.root.Replicator.Rules()), changed
	if rerr != nil {
		s.log.Error("rules of replication cannot be used, those before the change stay", "err", rerr)
	}
	if changed {
		s.log.Info("rules of replication read again", "rules", rep.Replication)
	}
	if s.audit != nil && (changed || rerr != nil) {
		e := auth.Event{Event: "admin", Outcome: "success", Action: "reload replication"}
		if rerr != nil {
			e.Outcome, e.Reason = "failure", rerr.Error()
		}
		s.audit.Record(e)
	}
	return rep, errors.Join(err, rerr)
}

// watchConfig reads the rules again when the configuration file has changed. It
// waits until the file has stayed the same for one interval, because editors write files
// in parts.
func (s *Server) watchConfig(ctx context.Context) {
	if s.reload == nil || s.configFile == "" {
		return
	}
	used := s.configInfo
	var seen os.FileInfo
	tick := time.NewTicker(s.configCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		info, err := os.Stat(s.configFile)
		if err != nil || sameFile(info, used) {
			seen = nil
			continue
		}
		if seen == nil || !sameFile(info, seen) {
			seen = info
			continue
		}
		used, seen = info, nil
		_, _ = s.Reload() // it logs what is wrong
	}
}

// sameFile reports whether a file is the same and has not changed.
func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}
