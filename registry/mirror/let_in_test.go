package mirror_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
)

// aged returns the config of an image that is old enough for any rule. Each n gives another one.
func aged(n int) string {
	return fmt.Sprintf(`{"os":"linux","architecture":"amd64","created":"2020-01-01T00:00:00Z","n":%d}`, n)
}

// lacks makes the upstream lack the content of a digest.
func lacks(d oci.Digest) func(*http.Request) *fault {
	return func(r *http.Request) *fault {
		if strings.HasSuffix(r.URL.Path, string(d)) {
			return &fault{status: 404}
		}
		return nil
	}
}

// TestIncompleteUpstream checks that a missing part of an image does not make its tag missing.
func TestIncompleteUpstream(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.MinAge = time.Hour }})
	layer := random(1, sizeTiny)
	old, _ := b.o.image("app", "v1", aged(1), layer)
	b.wantManifest("origin/app", "v1", old.Digest)
	until(t, "the tag is stored", func() bool {
		_, err := b.store.ResolveManifest(t.Context(), "origin/app", "v1")
		return err == nil
	})
	_, broken := b.o.image("app", "v1", aged(2), layer)
	b.o.image("app", "v2", aged(2), layer)
	b.o.on(lacks(broken.Config.Digest))
	b.clock.Add(2 * time.Hour)
	b.wantManifest("origin/app", "v1", old.Digest)
	if d, err := b.store.ResolveManifest(t.Context(), "origin/app", "v1"); err != nil || d.Digest != old.Digest {
		t.Errorf("in the store: %+v, %v", d, err)
	}
	_, err := b.GetManifest(t.Context(), "origin/app", "v2")
	wantCode(t, "a first pull", err, oci.CodeManifestUnknown)
}

// TestIncompleteIndex checks that the age of an index is that of its first image that is present.
func TestIncompleteIndex(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.MinAge = time.Hour }})
	index := &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex}
	for n := range 2 {
		d, _ := b.o.image("app", "", aged(n), random(1, sizeTiny))
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: "amd64"}
		index.Manifests = append(index.Manifests, d)
	}
	all := b.o.put("app", "all", index)
	b.o.on(lacks(index.Manifests[0].Digest))
	b.wantManifest("origin/app", "all", all.Digest)
	index.Manifests = index.Manifests[:1]
	b.o.on(nil)
	b.o.put("app", "one", index)
	b.o.on(lacks(index.Manifests[0].Digest))
	_, err := b.GetManifest(t.Context(), "origin/app", "one")
	wantCode(t, "an index of which nothing is there", err, oci.CodeManifestUnknown)
}

// TestRevoked checks that a tag which the upstream has refused is not served when the upstream
// fails later, in the same process or in another one.
func TestRevoked(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, between := range map[string]func(b *bed){
		"at once":         func(*bed) {},
		"after a restart": func(b *bed) { b.shut(b.Registry); b.open(settings{}) },
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); revoked(t, between) })
	}
}

func revoked(t *testing.T, between func(b *bed)) {
	b := newBed(t, settings{})
	other, _ := b.o.image("private", "v2", `{"n":2}`)
	b.wantManifest("origin/private", "v2", other.Digest)
	d, _ := b.o.image("private", "v1", `{}`)
	b.wantManifest("origin/private", "v1", d.Digest)
	b.clock.Add(2 * time.Hour)
	b.o.on(failAll(403))
	_, err := b.GetManifest(t.Context(), "origin/private", "v1")
	wantCode(t, "refused", err, oci.CodeDenied)
	between(b)
	b.o.on(failAll(500))
	for range 2 {
		b.clock.Add(time.Minute)
		_, err = b.GetManifest(t.Context(), "origin/private", "v1")
		wantCode(t, "refused, and then the upstream fails", err, oci.CodeUnavailable)
	}
	b.wantManifest("origin/private", "v2", other.Digest) // it was not refused
	b.o.on(nil)
	b.clock.Add(time.Minute)
	gets := b.o.count("GET /v2/private/manifests/")
	b.wantManifest("origin/private", "v1", d.Digest)
	if got := b.o.count("GET /v2/private/manifests/"); got != gets {
		t.Errorf("%d manifests were fetched that are here", got-gets)
	}
	between(b)
	b.o.on(failAll(500))
	b.clock.Add(2 * time.Hour)
	b.wantManifest("origin/private", "v1", d.Digest)
}

// TestSchema1 checks that a manifest whose digest cannot be checked stands for nothing but itself
// and passes no rule about content.
func TestSchema1(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, strict := range map[string]bool{"no rules": false, "rules": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, settings{source: func(s *mirror.Source) { s.OnlySigned = strict }})
			d, _ := b.o.image("app", "v1", `{}`)
			b.o.on(func(r *http.Request) *fault {
				if !strings.HasSuffix(r.URL.Path, "/manifests/forged") {
					return nil
				}
				return &fault{status: 200, body: `{"schemaVersion":1}`, header: map[string]string{
					"Content-Type": oci.MediaTypeDockerManifestV1S, "Docker-Content-Digest": string(d.Digest)}}
			})
			_, err := b.GetManifest(t.Context(), "origin/app", "forged")
			if strict {
				wantCode(t, "schema 1", err, oci.CodeDenied)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b.wantManifest("origin/app", string(d.Digest), d.Digest)
		})
	}
}

// TestBadConfig checks that the rules refuse an image whose config cannot be read, and that it is
// not requested again at once.
func TestBadConfig(t *testing.T) {
	b := newBed(t, settings{source: func(s *mirror.Source) { s.MinAge = time.Hour }})
	for tag, config := range map[string]string{"text": "no JSON", "long": `{"os":"` + strings.Repeat("x", 4<<20) + `"}`} {
		b.o.image("app", tag, config, random(1, sizeTiny))
		for range 3 {
			_, err := b.GetManifest(t.Context(), "origin/app", tag)
			wantCode(t, tag, err, oci.CodeDenied)
		}
		if got := b.o.count("GET /v2/app/manifests/" + tag); got != 1 {
			t.Errorf("%s: the manifest was fetched %d times, want once", tag, got)
		}
	}
}

// slowStore accepts manifests only when it is allowed to, and signals when one has arrived.
type slowStore struct {
	mirror.Store
	came, let chan struct{}
}

func (s *slowStore) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	close(s.came)
	<-s.let
	return s.Store.PutManifest(ctx, repo, m)
}

// TestDeletedWhilePending checks that a tag which was deleted before its manifest was stored does
// not return with it.
func TestDeletedWhilePending(t *testing.T) {
	for name, storing := range map[string]bool{"waiting": false, "being stored": true} {
		t.Run(name, func(t *testing.T) {
			came, let := make(chan struct{}), make(chan struct{})
			b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL = -1 }, wrap: func(s mirror.Store) mirror.Store { return &slowStore{s, came, let} }})
			d, _ := b.o.image("app", "v1", `{}`)
			if _, err := b.GetManifest(t.Context(), "origin/app", "v1"); err != nil {
				t.Fatal(err)
			}
			if storing {
				<-came
			}
			b.o.on(failAll(404))
			_, err := b.GetManifest(t.Context(), "origin/app", "v1")
			wantCode(t, "deleted tag", err, oci.CodeManifestUnknown)
			close(let)
			b.shut(b.Registry)
			if _, err := b.store.ResolveManifest(t.Context(), "origin/app", string(d.Digest)); err != nil {
				t.Errorf("the manifest was not stored: %v", err)
			}
			_, err = b.store.ResolveManifest(t.Context(), "origin/app", "v1")
			wantCode(t, "its tag in the store", err, oci.CodeManifestUnknown)
		})
	}
}

// overtaken is a store in which a manifest arrives while its tag is looked up. The look-up returns what was
// there before. This happens once, when armed is set; no manifest is stored before.
type overtaken struct {
	mirror.Store
	armed  atomic.Bool
	let    chan struct{}
	settle func(ctx context.Context)
}

func (s *overtaken) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	<-s.let
	return s.Store.PutManifest(ctx, repo, m)
}

func (s *overtaken) ResolveManifest(ctx context.Context, repo, ref string) (oci.Descriptor, error) {
	d, err := s.Store.ResolveManifest(ctx, repo, ref)
	if s.armed.CompareAndSwap(true, false) {
		close(s.let)
		s.settle(ctx)
	}
	return d, err
}

// TestStoredWhileAsked checks that a tag is served while the upstream fails, also if its manifest is stored at
// the very moment at which it is asked for.
func TestStoredWhileAsked(t *testing.T) {
	store := &overtaken{let: make(chan struct{})}
	b := newBed(t, settings{source: func(s *mirror.Source) { s.TTL = -1 }, wrap: func(s mirror.Store) mirror.Store { store.Store = s; return store }})
	store.settle = func(ctx context.Context) {
		err := b.DeleteBlob(ctx, "origin/app", oci.SHA256([]byte("absent"))) // it returns when everything that is being stored is there
		wantCode(t, "delete an absent blob", err, oci.CodeBlobUnknown)
	}
	d, _ := b.o.image("app", "v1", `{}`)
	b.wantManifest("origin/app", "v1", d.Digest)
	b.o.on(failAll(500))
	store.armed.Store(true)
	b.wantManifest("origin/app", "v1", d.Digest)
}

// TestSilentUpstream checks that a cached tag does not wait for an upstream that does not answer.
func TestSilentUpstream(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for some seconds")
	}
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "v1", `{}`)
	b.wantManifest("origin/app", "v1", d.Digest)
	b.clock.Add(2 * time.Hour)
	b.o.on(func(r *http.Request) *fault {
		<-r.Context().Done()
		return nil
	})
	began := time.Now()
	b.wantManifest("origin/app", "v1", d.Digest)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestForgetBlob checks that content which is not here cannot be deleted.
func TestForgetBlob(t *testing.T) {
	b := newBed(t, settings{})
	data := random(1, sizeTiny)
	d := b.o.push("app", data)
	wantCode(t, "before it is fetched", b.DeleteBlob(t.Context(), "origin/app", d.Digest), oci.CodeBlobUnknown)
	b.wantBlob("origin/app", data)
	b.settled()
	if err := b.DeleteBlob(t.Context(), "origin/app", d.Digest); err != nil {
		t.Error(err)
	}
	wantCode(t, "twice", b.DeleteBlob(t.Context(), "origin/app", d.Digest), oci.CodeBlobUnknown)
}

// TestLoadNested checks that a manifest which is named several times is visited once.
func TestLoadNested(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t, settings{})
	d, _ := b.o.image("app", "", `{}`, random(1, sizeTiny))
	for level := range 30 {
		tag := ""
		if level == 29 {
			tag = "v1"
		}
		d.Platform = nil
		d = b.o.put("app", tag, &manifest{SchemaVersion: 2, MediaType: oci.MediaTypeOCIIndex, Manifests: []oci.Descriptor{d, d}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.Load(ctx, "origin/app:v1", nil); err != nil {
		t.Error(err)
	}
}
