package mirror_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/upstream"
)

func patterns(t testing.TB, list ...string) []oci.HostPattern {
	t.Helper()
	var out []oci.HostPattern
	for _, s := range list {
		p, err := oci.ParseHostPattern(s)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		out = append(out, p)
	}
	return out
}

// TestAnyHosts checks which unlisted registries are mirrored, how they are named and where they
// are, and that names and hosts lead to each other.
func TestAnyHosts(t *testing.T) {
	a := mirror.AnyHosts{Patterns: patterns(t, "ghcr.io", "docker.io", "*.example.com", "*.example.com:5000", "internal.test:8443", "127.0.0.1:5000"),
		Except: map[string]bool{"own.example.com": true}}
	for _, c := range []struct {
		ns, name, url string
		guarded       bool
	}{
		{ns: "ghcr.io", name: "ghcr.io", url: "https://ghcr.io"},
		{ns: "GHCR.io:443", name: "ghcr.io", url: "https://ghcr.io"},
		{ns: "docker.io", name: "docker.io", url: "https://docker.io"},
		{ns: "index.docker.io", name: "docker.io", url: "https://docker.io"},
		{ns: "registry-1.docker.io", name: "docker.io", url: "https://docker.io"},
		{ns: "a.example.com", name: "a.example.com", url: "https://a.example.com", guarded: true},
		{ns: "a.example.com:5000", name: "a.example.com-5000", url: "https://a.example.com:5000", guarded: true},
		{ns: "a-b.example.com", name: "a-b.example.com", url: "https://a-b.example.com", guarded: true},
		{ns: "internal.test:8443", name: "internal.test-8443", url: "https://internal.test:8443"},
		{ns: "127.0.0.1:5000", name: "127.0.0.1-5000", url: "http://127.0.0.1:5000"},
		{ns: "a.example.com:5001"}, {ns: "own.example.com"}, {ns: "internal.test"}, {ns: "quay.io"}, {ns: "example.com"},
		{ns: ""}, {ns: "ghcr.io:80"}, {ns: "ghcr.io/org"}, {ns: "user@a.example.com"}, {ns: "[::1]:5000"}, {ns: "127.0.0.1"},
		{ns: "a.example.com:5000:1"}, {ns: "library"}, {ns: "a.example.com#"}, {ns: "..example.com"}, {ns: "-.example.com"}, {ns: "169.254.169.254"}, {ns: "a.example.com:05000"},
	} {
		name, ok := a.Name(c.ns)
		if ok != (c.url != "") || ok && name != c.name {
			t.Errorf("ns %q: got %q, %v, want %q", c.ns, name, ok, c.name)
		}
		if !ok {
			continue
		}
		if url, guarded := a.Where(name); url != c.url || guarded != c.guarded {
			t.Errorf("%s is at %q, guarded %v, want %q, %v", name, url, guarded, c.url, c.guarded)
		}
		if !a.Mirrored(name+"/app") || a.Mirrored(name) {
			t.Errorf("%s: Mirrored is wrong", name)
		}
	}
	all := mirror.AnyHosts{Patterns: patterns(t, "*", "*:*")}
	for repo, want := range map[string]bool{"library/nginx": false, "team/a.b/c": false, "quay.io/a": true, "localhost/a": true, "r.test-5000/a": true, "10.0.0.1/a": true} {
		if got := all.Mirrored(repo); got != want {
			t.Errorf("with *: %s is a mirror: %v", repo, got)
		}
	}
	one := mirror.AnyHosts{Patterns: patterns(t, "quay.io:*"), Except: map[string]bool{"quay.io": true, "quay.io-5000": true}}
	for _, name := range []string{"quay.io", "quay.io-443", "quay.io-0443", "quay.io-00443", "quay.io-5000", "quay.io-05000"} {
		if url, _ := one.Where(name); url != "" {
			t.Errorf("%s is at %s, and listed by another name", name, url)
		}
	}
	for _, ns := range []string{"quay.io", "10.0.0.1", "localhost", "127.0.0.1:5000", "169.254.169.254"} {
		name, ok := all.Name(ns)
		if _, guarded := all.Where(name); !ok || !guarded {
			t.Errorf("with *: %s is mirrored %v, guarded %v", ns, ok, guarded)
		}
	}
}

// TestAnyUpstreams mirrors unlisted registries, more of them than the mirror remembers.
func TestAnyUpstreams(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const many = 100
	open := map[string]int{}
	var b *bed
	b = newBed(t, settings{options: func(o *mirror.Options) {
		o.Any = &mirror.Any{AnyHosts: mirror.AnyHosts{Patterns: patterns(t, "*.test", "*.none"), Except: map[string]bool{"origin": true}},
			Open: func(name, url string, guarded bool) (*mirror.Source, error) {
				if !guarded || url != "https://"+name {
					t.Errorf("%s is at %s, guarded %v", name, url, guarded)
				}
				open[name]++
				up, err := upstream.New(&upstream.Options{Name: name, URL: b.o.url})
				return &mirror.Source{Name: name, Upstream: up}, err
			},
			Close:  func(s *mirror.Source) { open[s.Name]-- },
			Stored: func(context.Context) ([]string, error) { return []string{"first.test", "team", "origin"}, nil },
		}
	}})
	d, _ := b.o.image("app", "v1", `{}`)
	b.wantManifest("first.test/app", "v1", d.Digest)
	if got, err := b.Prefixes(t.Context()); err != nil || !slices.Contains(got, "first.test/") || !slices.Contains(got, "origin/") || len(got) != 2 {
		t.Errorf("prefixes %v, %v", got, err)
	}
	if name, ok := b.NameForAny("first.test:443", "app"); !ok || name != "first.test/app" {
		t.Errorf("NameForAny: %s, %v", name, ok)
	}
	if got := b.Name(t.Context(), "first.test/app"); got != "first.test/app" || len(open) != 1 {
		t.Errorf("a name stands for %s; %d are open", got, len(open))
	}
	// Names that lead nowhere do not evict an upstream that has served something.
	for i := range many {
		if _, err := b.GetManifest(t.Context(), fmt.Sprintf("r%d.none/none", i), "v1"); err == nil {
			t.Fatal("there is no such image")
		}
	}
	n := 0
	for _, k := range open {
		n += k
	}
	if st := b.Status(); n != 64 || len(st.Sources) != 65 || open["first.test"] != 1 {
		t.Errorf("%d registries are open, %d are shown", n, len(st.Sources))
	}
	if _, err := b.PutManifest(t.Context(), "other.test/app", oci.PutManifest{}); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("a push: %v", err)
	}
	for i := range 3000 { // the memory for one of them is bounded
		_, _ = b.GetManifest(t.Context(), "first.test/app", fmt.Sprintf("none%d", i))
	}
	b.wantManifest("first.test/app", "v1", d.Digest)
	b.o.srv.Close()
	b.wantManifest("first.test/app", string(d.Digest), d.Digest)
}

// newGuardedBed has a mirror of an origin and, as first.test, of a registry that a client chose.
func newGuardedBed(t *testing.T, chosen string) *bed {
	t.Helper()
	return newBed(t, settings{options: func(o *mirror.Options) {
		o.Patience = time.Millisecond
		o.Any = &mirror.Any{AnyHosts: mirror.AnyHosts{Patterns: patterns(t, "*.test")},
			Open: func(name, _ string, _ bool) (*mirror.Source, error) {
				up, err := upstream.New(&upstream.Options{Name: name, URL: chosen, Logger: slog.New(slog.DiscardHandler)})
				return &mirror.Source{Name: name, Upstream: up}, err
			},
			Stored: func(context.Context) ([]string, error) { return nil, nil },
		}
	}})
}

// TestAnyLies checks that a registry that a client chose cannot show stored content to the client
// by claiming to have it.
func TestAnyLies(t *testing.T) {
	liar := newOrigin(t, true)
	b := newGuardedBed(t, liar.url)
	secret := random(7, 2<<20)
	d, size := oci.SHA256(secret), strconv.Itoa(2<<20)
	gate := make(chan struct{})
	defer close(gate)
	liar.on(func(r *http.Request) *fault {
		return &fault{status: 200, header: map[string]string{"Content-Length": size}}
	})

	// The content is stored here, in a repository of which the client may only know the
	// digests.
	b.o.push("app", secret)
	b.wantBlob("origin/app", secret)
	b.settled()
	if got, err := b.get("first.test/app", d); err == nil || len(got) > 0 {
		t.Errorf("a stored blob: got %d bytes", len(got))
	}

	// The content is being fetched.
	other := random(8, 2<<20)
	e := b.o.push("app", other).Digest
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, e) {
			return &fault{gate: gate, gateAt: 1 << 20}
		}
		return nil
	})
	c, err := b.GetBlob(t.Context(), "origin/app", e)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 1<<19)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if got, err := read(b.GetBlobRange(ctx, "first.test/app", e, 0, 1<<19)); err == nil || len(got) > 0 {
		t.Errorf("a blob that is being fetched: got %d bytes", len(got))
	}
}

// TestAnySpoilsNothing checks that the answers of a registry that a client chose affect no
// other client.
func TestAnySpoilsNothing(t *testing.T) {
	liar := newOrigin(t, false)
	b := newGuardedBed(t, liar.url)
	layer := random(9, 2<<20)
	d := liar.push("app", layer).Digest
	liar.push("other", layer)
	b.o.push("app", layer)

	// The fetch broke off after wrong bytes.
	liar.on(func(r *http.Request) *fault {
		if r.Method == http.MethodGet {
			return &fault{flip: true, flipAt: 5, cutAt: 1 << 20}
		}
		return nil
	})
	if _, err := b.get("first.test/app", d); err == nil {
		t.Error("wrong bytes were given as the blob")
	}
	b.settled()

	// It stands still.
	gate := make(chan struct{})
	liar.on(func(r *http.Request) *fault {
		if r.Method == http.MethodGet {
			return &fault{gate: gate, gateAt: 4 << 10}
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := read(b.GetBlob(ctx, "first.test/other", d))
		done <- err
	}()
	until(t, "it is being fetched", func() bool { return len(b.Status().Fills) == 1 })
	got, err := read(b.GetBlob(ctx, "origin/app", d))
	if err != nil || oci.SHA256(got) != d {
		t.Errorf("the blob of a listed upstream: got %d bytes, %v", len(got), err)
	}
	close(gate)
	<-done // what became of it is its own upstream's business
}
