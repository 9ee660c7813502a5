package tiers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// host takes the place of a test, because package backendtest starts its servers for
// tests. close ends what would end with a test.
type host struct {
	testing.TB // methods that are not defined below are not called
	b          *bench

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

// failure is the value that Fatal panics with.
type failure struct{ error }

// errMissing is the error for a server that is not installed.
var errMissing = errors.New("not installed")

// newHost returns a host. close ends everything that was registered with it.
func newHost(b *bench) *host { return &host{b: b} }

// started calls a function that starts a server and turns the end of the test into an error. The
// error is errMissing if the test would have been skipped.
func started[T any](h *host, start func(t testing.TB) T) (v T, err error) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			err = f.error
		default:
			panic(f)
		}
	}()
	return start(h), nil
}

// close ends everything, in reverse order.
func (h *host) close() {
	for {
		h.mu.Lock()
		n := len(h.cleanups)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		f := h.cleanups[n-1]
		h.cleanups = h.cleanups[:n-1]
		h.mu.Unlock()
		f()
	}
}

func (h *host) Helper()                  {}
func (h *host) Name() string             { return "tierbench" }
func (h *host) Context() context.Context { return context.Background() }

func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

func (h *host) Failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

func (h *host) TempDir() string {
	dir := h.b.NewDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { h.b.Remove(dir) })
	return dir
}

func (h *host) Log(args ...any)                 { h.b.Logf("%s", fmt.Sprint(args...)) }
func (h *host) Logf(format string, args ...any) { h.b.Logf(format, args...) }

func (h *host) Error(args ...any) { h.fail(fmt.Sprint(args...)) }

func (h *host) Errorf(format string, args ...any) { h.fail(fmt.Sprintf(format, args...)) }

func (h *host) fail(text string) {
	h.mu.Lock()
	h.failed = true
	h.mu.Unlock()
	h.b.Logf("%s", text)
}

func (h *host) Fatal(args ...any) {
	h.Error(args...)
	panic(failure{errors.New(fmt.Sprint(args...))})
}

func (h *host) Fatalf(format string, args ...any) {
	h.Errorf(format, args...)
	panic(failure{fmt.Errorf(format, args...)})
}

func (h *host) Skip(args ...any) {
	panic(failure{fmt.Errorf("%w: %s", errMissing, fmt.Sprint(args...))})
}

func (h *host) Skipf(format string, args ...any) {
	panic(failure{fmt.Errorf("%w: %s", errMissing, fmt.Sprintf(format, args...))})
}
