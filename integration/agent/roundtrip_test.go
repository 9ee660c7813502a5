package agent_test

import (
	"cmp"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// exchange holds the start and the end of a request.
type exchange struct {
	what       string
	begin, end time.Time
}

// inARow returns how many of the requests came one after the other: the largest number of requests
// of which no two overlap in time.
func inARow(all []exchange) (n int) {
	slices.SortFunc(all, func(a, b exchange) int { return a.end.Compare(b.end) })
	var last time.Time
	for _, e := range all {
		if !e.begin.Before(last) {
			n, last = n+1, e.end
		}
	}
	return n
}

// TestRoundTrips counts how often a node waits for a distant registry until the first container of
// an image starts with the files of its profile. It must wait once for everything: what describes
// the image, and on an empty node the files.
func TestRoundTrips(t *testing.T) {
	const files, far = 40, 300 * time.Millisecond
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	node.Start(t, quiet).Run("profile", "record", "--runtime", tool.Built(t, "runc"), ref, "--", "one")
	g := behind(t, s)
	var mu sync.Mutex
	var all []exchange
	g.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		e := exchange{what: r.Method + " " + r.URL.Path, begin: time.Now()}
		time.Sleep(far) // the round trip
		pass.ServeHTTP(w, r)
		e.end = time.Now()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, e)
	})
	a := node.Start(t, quiet)
	began := time.Now()
	dir := a.Mount(g.ref(ref))
	took := time.Since(began)
	mu.Lock()
	got := slices.Clone(all)
	mu.Unlock()
	if img := a.Image(); img.ProfileFiles < files/2 || img.DemandFiles != 0 {
		t.Errorf("%d files came with the profile, %d on demand, want %d at least and 0", img.ProfileFiles, img.DemandFiles, files/2)
	}
	n := inARow(got)
	t.Logf("%d requests of the extension, %d in a row, %v", len(got), n, took)
	if n != 1 {
		slices.SortFunc(got, func(a, b exchange) int { return cmp.Compare(a.begin.UnixNano(), b.begin.UnixNano()) })
		for _, e := range got {
			_, what, _ := strings.Cut(e.what, "_slipway/gear")
			t.Logf("%s from %v to %v", what, e.begin.Sub(began), e.end.Sub(began))
		}
		t.Errorf("the node waits for the registry %d times in a row, want 1", n)
	}
	a.Run("umount", dir)
	proc.Poll(t, 10*time.Second, "nothing is mounted", func() bool { return len(a.Mounts()) == 1 })
}

// TestDistance counts the round trips from nothing to the end of the first container of an image that
// has a profile, with containerd, for a node that is configured for the registry. Each connection,
// each handshake of TLS and each request counts, unless another one runs at the same time. Nearly
// all of them are containerd's own.
func TestDistance(t *testing.T) {
	const files = 40
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	_, name, _ := strings.Cut(ref, "/")
	_, next, _ := strings.Cut(push(t, s, "team/app:v2", image(t, 1, files, "VERSION=2")), "/")
	node.Start(t, quiet).Run("profile", "record", "--runtime", tool.Built(t, "runc"), ref, "--", "one")
	secure, ca := encrypted(t, s.Addr)
	hosts := t.TempDir()
	for _, c := range []struct {
		name, scheme, to string
		flags            []string
		warm, most       int
	}{
		// containerd needs five: two connections, HEAD and GET of the manifest, and the
		// configuration. The agent needs one.
		{"HTTP", "http", s.Addr, []string{"--plain-http"}, 9, 6},
		// containerd needs seven: its two connections have handshakes of TLS. The agent needs one.
		{"HTTPS", "https", secure, []string{"--hosts-dir", hosts}, 2, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := away(t, c.to, 300*time.Millisecond)
			a, ctr := withContainerd(t, quiet+fmt.Sprintf("registries: [{host: %q, urls: [%q], ca: %q}]\n", d.addr, c.scheme+"://"+d.addr, ca))
			proc.Poll(t, 10*time.Second, "answers to the agent, which keeps connections open", func() bool { return d.answered() >= c.warm })
			of := filepath.Join(hosts, d.addr)
			if err := os.MkdirAll(of, 0o700); err != nil {
				t.Fatal(err)
			}
			toml := fmt.Sprintf("server = %[1]q\n[host.%[1]q]\nca = %[2]q\n", "https://"+d.addr, ca)
			if err := os.WriteFile(filepath.Join(of, "hosts.toml"), []byte(toml), 0o600); err != nil {
				t.Fatal(err)
			}
			d.taken()
			began, at := time.Now(), d.addr+"/"+name
			ctr.Run(t, append(append([]string{"image", "pull", "--snapshotter", "slipway"}, c.flags...), at)...)
			pulled := time.Since(began)
			if out := run(t, ctr, at, "first", "one"); !strings.Contains(out, good(files/2)) {
				t.Errorf("the container prints %s", out)
			}
			all := d.taken()
			if img := a.Image(); img.ProfileFiles < files/2 || img.DemandFiles != 0 {
				t.Errorf("%d files came with the profile, %d on demand, want %d at least and 0", img.ProfileFiles, img.DemandFiles, files/2)
			}
			n := inARow(all)
			t.Logf("%d round trips, %d in a row; pulled after %v, done after %v", len(all), n, pulled, time.Since(began))
			slices.SortFunc(all, func(a, b exchange) int { return a.begin.Compare(b.begin) })
			for _, e := range all {
				t.Logf("%4d to %4d ms: %s", e.begin.Sub(began).Milliseconds(), e.end.Sub(began).Milliseconds(), e.what)
			}
			if n > c.most {
				t.Errorf("the first container takes %d round trips in a row, want %d at most", n, c.most)
			}
			// The next version has the same files, so nothing of it is sent again.
			at = d.addr + "/" + next
			ctr.Run(t, append(append([]string{"image", "pull", "--snapshotter", "slipway"}, c.flags...), at)...)
			if out := run(t, ctr, at, "next", "one"); !strings.Contains(out, good(files/2)) {
				t.Errorf("the container of the next version prints %s", out)
			}
			for _, e := range d.taken() {
				if strings.Contains(e.what, "/fetch") {
					t.Errorf("the next version, whose files are there: %s", e.what)
				}
			}
		})
	}
}

// encrypted starts a server that passes requests on, and speaks TLS and HTTP/2. It returns its
// address and a file with its certificate.
func encrypted(t testing.TB, to string) (addr, ca string) {
	t.Helper()
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})
	pass.FlushInterval = -1
	s := httptest.NewUnstartedServer(pass)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s.Listener.Addr().String(), ca
}
