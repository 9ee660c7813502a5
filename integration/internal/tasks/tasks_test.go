package tasks_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/tasks"
)

func TestEverySeriesHasItsTasks(t *testing.T) {
	all := tasks.Series()
	if !slices.IsSorted(all) || len(all) != 9 {
		t.Errorf("series %v", all)
	}
	for _, series := range all {
		a, okA := tasks.First(series)
		b, okB := tasks.Second(series)
		if !okA || !okB || a.Name == b.Name {
			t.Errorf("series %s: %q %t, %q %t", series, a.Name, okA, b.Name, okB)
		}
		c, ok := tasks.Light(series)
		if !ok || c.Probe != nil {
			t.Errorf("series %s: light task %+v, %t", series, c, ok)
		}
		for _, task := range []tasks.Task{a, b, c} {
			if len(task.Want) == 0 || task.Timeout == 0 || (task.Probe == nil) != (len(task.Args) > 0) {
				t.Errorf("%s: %+v", task, task)
			}
			if err := task.Check(strings.Join(task.Want, "--")); err != nil {
				t.Error(err)
			}
			if err := task.Check("Error: no such file or directory\n"); err == nil {
				t.Errorf("%s accepts a failure", task)
			}
		}
	}
	if _, ok := tasks.First("unknown"); ok {
		t.Error("an unknown series has a task")
	}
}

// TestCheckMindsTheOrder checks that the texts must come in order.
func TestCheckMindsTheOrder(t *testing.T) {
	task := tasks.Task{Series: "s", Name: "n", Want: []string{"a", "b", "b"}}
	for out, want := range map[string]bool{"abb": true, "xaxbxbx": true, "ab": false, "bba": false, "bab": false, "": false} {
		if err := task.Check(out); (err == nil) != want {
			t.Errorf("check of %q: %v", out, err)
		}
	}
}

// dialTo connects to one address, whatever the caller asks for. It refuses the first failures
// connections, like a service that is still starting.
func dialTo(address string, failures int) tasks.Dialer {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		if failures--; failures >= 0 {
			return nil, errors.New("connection refused")
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}
}

func TestProbeOfAPage(t *testing.T) {
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n++; n < 3 { // not ready yet
			http.Error(w, "wait", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "<!DOCTYPE html> Welcome to nginx! </html> ", r.URL.Path)
	}))
	defer srv.Close()
	task, _ := tasks.First("nginx")
	got, err := task.Probe(t.Context(), dialTo(srv.Listener.Addr().String(), 2))
	if err != nil || n != 3 {
		t.Fatalf("answer %q after %d requests, %v", got, n, err)
	}
	if err := task.Check(got); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := task.Probe(ctx, dialTo("", 1e6)); err == nil {
		t.Error("a service that is not there has answered")
	}
}

// serve calls a function for each connection.
func serve(t *testing.T, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestProbeOfRedis(t *testing.T) {
	n := 0
	address := serve(t, func(c net.Conn) {
		n++
		r := bufio.NewReader(c)
		for _, reply := range []string{"+PONG", "+OK", "$1\r\n1", ":1", "$-1"} {
			if n == 1 {
				reply = "-LOADING Redis is loading the dataset in memory"
			}
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
			fmt.Fprint(c, reply+"\r\n")
		}
	})
	task, _ := tasks.First("redis")
	got, err := task.Probe(t.Context(), dialTo(address, 0))
	if err != nil || n != 2 {
		t.Fatalf("answer %q after %d connections, %v", got, n, err)
	}
	if err := task.Check(got); err != nil {
		t.Error(err)
	}
}

func TestProbeOfPostgres(t *testing.T) {
	ready := "R\x00\x00\x00\x08\x00\x00\x00\x00" + "Z\x00\x00\x00\x05I"
	row := "D\x00\x00\x00\x17\x00\x02" + "\x00\x00\x00\x03992" + "\x00\x00\x00\x06501456"
	replies := []string{
		"E\x00\x00\x00\x0cstarting", "D\xff\xff\xff\xff", "D\x00\x00\x00\x04" + ready, // tried again each
		row + "Z\x00\x00\x00\x05I",
	}
	n := 0
	address := serve(t, func(c net.Conn) {
		start := make([]byte, 41)
		if _, err := io.ReadFull(c, start); err != nil {
			return
		}
		fmt.Fprint(c, ready)
		if _, err := io.ReadFull(c, start[:1]); err != nil || start[0] != 'Q' {
			return
		}
		fmt.Fprint(c, replies[min(n, len(replies)-1)])
		n++
	})
	task, _ := tasks.First("postgres")
	got, err := task.Probe(t.Context(), dialTo(address, 0))
	if err != nil || n != len(replies) {
		t.Fatalf("answer %q after %d queries, %v", got, n, err)
	}
	if err := task.Check(got); err != nil {
		t.Error(err)
	}
}
