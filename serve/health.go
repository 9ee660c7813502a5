package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/registry"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/mirrors"
)

// health answers /livez and /readyz.
type health struct {
	root    *dataroot.Root
	reg     *registry.Registry
	mirrors *mirrors.Mirrors // may be nil
	log     *slog.Logger
	checks  []*healthCheck
	drain   atomic.Bool
}

// healthCheck is a configured health check, which runs at its own interval.
type healthCheck struct {
	name      string
	every     time.Duration
	threshold int
	run       func(context.Context) error

	mu       sync.Mutex
	failures int
	err      error
}

func newHealth(cfg *config.Config, r *dataroot.Root, log *slog.Logger) *health {
	reg := r.Registry
	h := &health{root: r, reg: reg, mirrors: r.Mirrors, log: log}
	add := func(name string, every time.Duration, threshold int, run func(context.Context) error) {
		h.checks = append(h.checks, &healthCheck{name: name, every: every, threshold: max(threshold, 1), run: run})
	}
	if c := cfg.Health.StorageDriver; c.Enabled {
		add("storage", c.Interval, c.Threshold, reg.Ready)
	}
	for _, c := range cfg.Health.File {
		add("file "+c.File, c.Interval, c.Threshold, func(context.Context) error {
			if _, err := os.Stat(c.File); err == nil {
				return fmt.Errorf("file %s exists", c.File)
			}
			return nil
		})
	}
	for _, c := range cfg.Health.TCP {
		add("tcp "+c.Addr, c.Interval, c.Threshold, func(ctx context.Context) error {
			conn, err := (&net.Dialer{Timeout: c.Timeout}).DialContext(ctx, "tcp", c.Addr)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	for _, c := range cfg.Health.HTTP {
		// Each check opens a new connection, because an old connection proves little.
		client := &http.Client{Timeout: c.Timeout, Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}
		add("http "+c.URI, c.Interval, c.Threshold, func(ctx context.Context) error { return headURL(ctx, client, c) })
	}
	return h
}

func headURL(ctx context.Context, client *http.Client, c config.HTTPCheck) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, c.URI, nil)
	if err != nil {
		return err
	}
	for k, v := range c.Headers {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != c.StatusCode {
		return fmt.Errorf("%s answered %d, not %d", c.URI, resp.StatusCode, c.StatusCode)
	}
	return nil
}

// run runs the configured checks until ctx ends.
func (h *health) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range h.checks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			tick := time.NewTicker(c.every)
			defer tick.Stop()
			for {
				h.runOnce(ctx, c)
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		}()
	}
	wg.Wait()
}

func (h *health) runOnce(ctx context.Context, c *healthCheck) {
	err := c.run(ctx)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	if err == nil {
		c.failures = 0
		return
	}
	if c.failures++; c.failures == c.threshold {
		h.log.Warn("health check fails", "check", c.name, "err", err)
	}
}

// stopping makes the server unready, so that load balancers send no more requests.
func (h *health) stopping() { h.drain.Store(true) }

// live answers 200 as long as the process can answer at all.
func (h *health) live(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }

// ready answers 200 when the registry can serve. An upstream that cannot be reached, or a
// full disk, is reported but does not make the registry unready, because stored content
// can still be pulled.
func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	if err := h.problem(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
	if err := h.root.Full(); err != nil {
		fmt.Fprintf(w, "pushes are refused: %v\n", err)
	}
	for _, line := range h.mirrors.Failing() {
		fmt.Fprintln(w, line)
	}
}

func (h *health) problem(ctx context.Context) error {
	if h.drain.Load() {
		return fmt.Errorf("the server is stopping")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := h.reg.Ready(ctx); err != nil {
		return err
	}
	if err := h.root.Impaired(); err != nil {
		return err
	}
	for _, c := range h.checks {
		c.mu.Lock()
		failures, err := c.failures, c.err
		c.mu.Unlock()
		if failures >= c.threshold {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}
