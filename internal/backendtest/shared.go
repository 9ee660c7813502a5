package backendtest

import (
	"sync"
	"testing"
)

// Shared keeps servers that all tests of a package use, each with its own names in them.
// The TestMain of the package closes it after the last test. The zero value is ready.
type Shared struct {
	mu       sync.Mutex
	postgres *PostgresServer
	ceph     *Ceph
	cleanups []func()
}

// Postgres returns the PostgreSQL server of the package. The first call starts it, with
// its settings. Tests must not stop it.
func (s *Shared) Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.postgres == nil {
		s.postgres = Postgres(&packageTB{TB: t, shared: s}, settings...)
	}
	return s.postgres
}

// Close stops the servers.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups, s.postgres, s.ceph = nil, nil, nil
}

// packageTB is a test that ends with its package. If a server fails to start, the test
// that asked for it first fails.
type packageTB struct {
	testing.TB
	shared *Shared
}

func (t *packageTB) Cleanup(f func()) { t.shared.cleanups = append(t.shared.cleanups, f) }

// Failed is called when the test is over.
func (t *packageTB) Failed() bool { return false }
