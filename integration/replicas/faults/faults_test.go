package faults_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/replicas/faults"
)

// echo starts a server that sends back what it receives.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return ln.Addr().String()
}

func say(c net.Conn, s string, wait time.Duration) (string, error) {
	if _, err := io.WriteString(c, s); err != nil {
		return "", err
	}
	return hear(c, len(s), wait)
}

func hear(c net.Conn, n int, wait time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(wait))
	b := make([]byte, n)
	n, err := io.ReadFull(c, b)
	return string(b[:n]), err
}

// TestLink checks that a silent link loses nothing and answers nothing, and that a broken link ends
// everything.
func TestLink(t *testing.T) {
	l := faults.NewLink(t, "127.0.0.1", echo(t))
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	old := dial()
	if got, err := say(old, "one", 10*time.Second); got != "one" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	l.Set(faults.Silent)
	fresh := dial()
	for _, c := range []net.Conn{old, fresh} {
		if got, err := say(c, "two", 50*time.Millisecond); got != "" || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent: got %q, %v", got, err)
		}
	}
	l.Set(faults.Passing)
	for _, c := range []net.Conn{old, fresh} {
		if got, err := hear(c, 3, 10*time.Second); got != "two" || err != nil {
			t.Errorf("passing again: got %q, %v", got, err)
		}
	}
	l.Set(faults.Broken)
	for _, c := range []net.Conn{old, fresh} {
		if got, err := hear(c, 1, 10*time.Second); got != "" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("broken: got %q, %v", got, err)
		}
	}
	if c, err := net.Dial("tcp", l.Addr); err == nil { // the reset may come before or after
		if got, err := say(c, "x", 10*time.Second); got != "" || err == nil {
			t.Errorf("broken: a new connection answers %q, %v", got, err)
		}
		c.Close()
	}
	l.Set(faults.Passing)
	if got, err := say(dial(), "three", 10*time.Second); got != "three" || err != nil {
		t.Errorf("after all: got %q, %v", got, err)
	}
}

// TestStore checks that each trouble does what it says.
func TestStore(t *testing.T) {
	var done atomic.Int32
	body := bytes.Repeat([]byte("x"), 100_000)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		done.Add(1)
		w.Header().Set("X-Host", r.Host)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}))
	t.Cleanup(backend.Close)
	s := faults.NewStore(t, backend.Listener.Addr().String(), 1)
	get := func() (status int, host string, n int, err error) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get("http://" + s.Addr + "/bucket/key")
		if err != nil {
			return 0, "", 0, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("X-Host"), len(b), err
	}
	for _, c := range []struct {
		name    string
		trouble faults.Trouble
		status  int
		fails   bool
		reaches bool
	}{
		{"none", faults.Trouble{}, 200, false, true},
		{"slow down", faults.Trouble{SlowDown: 1}, 503, false, false},
		{"lost", faults.Trouble{Lost: 1}, 0, true, false},
		{"unanswered", faults.Trouble{Unanswered: 1}, 0, true, true},
		{"cut", faults.Trouble{Cut: 1}, 200, true, true},
		{"slow", faults.Trouble{Slow: 1, Delay: time.Millisecond}, 200, false, true},
	} {
		before := done.Load()
		s.Set(c.trouble)
		status, host, n, err := get()
		if status != c.status || (err != nil) != c.fails || (done.Load() > before) != c.reaches {
			t.Errorf("%s: status %d, %d bytes, %v, the store was asked %d times", c.name, status, n, err, done.Load()-before)
		}
		if c.status == 200 && (host != s.Addr || c.fails == (n == len(body))) {
			t.Errorf("%s: Host %s, %d bytes", c.name, host, n)
		}
	}
	if got, want := s.Summary(), "1 slow down, 1 lost, 1 unanswered, 1 cut, 1 slow"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}
