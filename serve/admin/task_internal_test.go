package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
)

// TestTaskClientGone wants a task to end when its client is gone, and the gate to wait for it.
func TestTaskClientGone(t *testing.T) {
	ended := make(chan error, 1)
	var g gate.Requests
	srv := httptest.NewServer(g.Guard(task(func(ctx context.Context, _ dataroot.GCArgs, progress func(int)) (int, error) {
		progress(1)
		<-ctx.Done()
		ended <- ctx.Err()
		return 0, ctx.Err()
	})))
	defer srv.Close()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}}
	defer transport.CloseIdleConnections()
	a := &Admin{http: &http.Client{Transport: transport}}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := askServer(ctx, a, "gc", dataroot.GCArgs{}, func(n int) {
		short, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		if err := g.Shut(short); err == nil {
			t.Error("the gate was shut while a task was under way")
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v, want context.Canceled", err)
	}
	if err := <-ended; err == nil {
		t.Error("the task's context has no error")
	}
	if err := g.Shut(t.Context()); err != nil {
		t.Errorf("shut: %v", err)
	}
	resp, err := srv.Client().Post(srv.URL, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the gate was shut: got %s, want 503", resp.Status)
	}
}

// TestRemoteErrors wants a distinct error for each way in which an answer can go wrong.
func TestRemoteErrors(t *testing.T) {
	for _, c := range []struct {
		name, answer, want string
	}{
		{"task failed", `{"report":7,"error":"the disk is full"}`, "the disk is full"},
		{"cut off", `{"progress":1}` + "\n", "ended before"},
		{"cut off in a line", `{"progress":1}` + "\n" + `{"repo`, "ended before"},
		{"nonsense", `hello`, "read the server's answer"},
		{"other version", "", "version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.answer == "" {
					http.NotFound(w, nil)
				}
				w.Write([]byte(c.answer))
			}))
			defer srv.Close()
			transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
			}}
			defer transport.CloseIdleConnections()
			_, err := askServer[dataroot.GCArgs, int](t.Context(), &Admin{http: &http.Client{Transport: transport}}, "gc", dataroot.GCArgs{}, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
