package mirror_test

import (
	"net/http"
	"testing"
	"time"

	"example.org/slipway/registry/mirror"
)

func aheadUpTo(n int64) settings {
	return settings{options: func(o *mirror.Options) { o.Ahead = n }}
}

// TestAhead checks that the small blobs of an image are fetched with its manifest, once, and the
// large ones when somebody asks for them.
func TestAhead(t *testing.T) {
	b := newBed(t, aheadUpTo(sizeSmall))
	layers := [][]byte{random(1, sizeTiny), random(2, sizeSmall), random(3, sizeSmall+1)}
	desc, m := b.o.image("app", "v1", `{"os":"linux","architecture":"amd64"}`, layers...)
	b.wantManifest("origin/app", "v1", desc.Digest)
	until(t, "the small blobs are here", func() bool {
		for _, d := range append(m.Layers[:2:2], *m.Config) {
			if _, err := b.store.ResolveBlob(t.Context(), "origin/app", d.Digest); err != nil {
				return false
			}
		}
		return true
	})
	b.settled()
	if got := b.o.count("GET /v2/app/blobs/"); got != 3 {
		t.Errorf("%d blobs were fetched before anybody asked, want 3", got)
	}
	for _, data := range layers {
		b.wantBlob("origin/app", data)
	}
	b.settled()
	if got := b.o.count("GET /v2/app/blobs/"); got != 4 {
		t.Errorf("%d downloads of 4 blobs", got)
	}
	// The image is here. Nothing is fetched or looked up any more.
	b.wantManifest("origin/app", "v1", desc.Digest)
	if got := b.o.count("/v2/app/blobs/"); got != 4 {
		t.Errorf("%d requests for 4 blobs", got)
	}
}

// TestAheadOfLies checks that a blob larger than its manifest says is not fetched to its end when
// nobody asked for it.
func TestAheadOfLies(t *testing.T) {
	s := aheadUpTo(sizeSmall)
	s.lying = true
	b := newBed(t, s)
	data := random(4, sizeLarge)
	_, m := b.o.image("app", "v1", `{"os":"linux","architecture":"amd64"}`, data)
	m.Layers[0].Size = 1000
	gate := make(chan struct{})
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, m.Layers[0].Digest) {
			return &fault{gate: gate, gateAt: 1 << 20}
		}
		return nil
	})
	lie := b.o.put("app", "lie", m)
	b.wantManifest("origin/app", "lie", lie.Digest)
	until(t, "the lie is being fetched", func() bool { return b.o.sentOf(m.Layers[0].Digest) > 0 })
	until(t, "nobody waits for it", func() bool { return b.readers() == 0 })
	b.clock.Add(time.Hour)
	close(gate)
	b.settled()
	b.o.on(nil)
	b.wantBlob("origin/app", data)
}

// TestAheadFails checks that a blob which cannot be fetched is not an error of the manifest, and
// that a client which asks for it gets the error.
func TestAheadFails(t *testing.T) {
	b := newBed(t, aheadUpTo(sizeSmall))
	data := random(5, sizeTiny)
	desc, m := b.o.image("app", "v1", `{"os":"linux","architecture":"amd64"}`, data)
	b.o.on(func(r *http.Request) *fault {
		if isBlob(r, m.Layers[0].Digest) {
			return &fault{status: http.StatusNotFound}
		}
		return nil
	})
	b.wantManifest("origin/app", "v1", desc.Digest)
	b.settled()
	if _, err := b.get("origin/app", m.Layers[0].Digest); err == nil {
		t.Error("a blob was read that the upstream does not give")
	}
	b.o.on(nil)
	b.clock.Add(time.Minute)
	b.wantBlob("origin/app", data)
}

// TestAheadOfOne checks that nothing is fetched ahead of an image that has a single small blob.
// The client requests that blob next, and fetching it ahead would take the connection from this
// request.
func TestAheadOfOne(t *testing.T) {
	b := newBed(t, aheadUpTo(sizeSmall))
	desc, _ := b.o.image("app", "v1", `{"os":"linux","architecture":"amd64"}`, random(6, sizeSmall+1))
	b.wantManifest("origin/app", "v1", desc.Digest)
	b.settled()
	if got := b.o.count("/v2/app/blobs/"); got != 0 {
		t.Errorf("%d requests for blobs before anybody asked, want none", got)
	}
}
