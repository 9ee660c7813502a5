package service_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/volume/block"
	volumeregistry "example.org/slipway/volume/service"
)

// TestCredentialsAreFew checks a caller that asks very often and for any image. It has few
// credentials at a time and is never left with less than half of the lifetime of one. It never gets
// a credential of another caller or one with more rights.
func TestCredentialsAreFew(t *testing.T) {
	const ttl = time.Hour
	var now, made atomic.Int64
	now.Store(time.Now().UnixNano())
	clock := func() time.Time { return time.Unix(0, now.Load()) }
	b := newBed(t, newPlace(t), setup{opts: volumeregistry.Options{CredentialTTL: ttl, Clock: clock},
		store: func(s block.Store) block.Store { return issuing{s, "clones", &atomic.Int64{}, &made} }})
	images := []oci.Digest{b.push(repo, "v1", base(t)), b.push(repo, "v2", base(t), layer(t, "a", "a"))}
	for _, d := range images {
		b.built(repo, d)
	}
	type who struct {
		name   string
		clones bool
	}
	owner := map[string]who{} // of each credential
	users := map[who]map[string]bool{}
	var mu sync.Mutex
	ask := func(w who, d oci.Digest, refused string) string {
		ctx := oci.WithActor(t.Context(), &oci.Actor{Name: w.name})
		c, err := b.svc.Credential(ctx, repo, d, w.clones, refused)
		mu.Lock()
		defer mu.Unlock()
		if err != nil || (c.Clones != "") != w.clones {
			t.Errorf("%+v: got %+v, %v", w, c, err)
		}
		if o, known := owner[c.User]; known && o != w {
			t.Errorf("%+v has the credential of %+v", w, o)
		}
		owner[c.User] = w
		if users[w] == nil {
			users[w] = map[string]bool{}
		}
		users[w][c.User] = true
		return c.User
	}
	all := []who{{"alice", false}, {"alice", true}, {"bob", false}, {"bob", true}}
	for round := range 8 {
		var wg sync.WaitGroup
		for _, w := range all {
			for k := range 250 {
				wg.Go(func() { ask(w, images[k%2], "") })
			}
		}
		wg.Wait()
		for _, w := range all {
			// Four rounds are one lifetime. Each half of it has one credential.
			if want := round/2 + 1; len(users[w]) != want {
				t.Errorf("round %d: %+v has had %d credentials, want %d", round, w, len(users[w]), want)
			}
		}
		now.Add(int64(ttl / 4))
	}
	// A credential that the storage refuses is replaced, but not for ever.
	w := who{"carol", false}
	had := map[string]bool{}
	for user, k := "", 0; k < 100; k++ {
		user = ask(w, images[0], user)
		had[user] = true
	}
	if len(had) < 2 || len(had) > 4 {
		t.Errorf("a caller whose credentials are refused had %d", len(had))
	}
	if got := ask(w, images[0], "another's"); !had[got] {
		t.Error("a credential that was not refused is replaced")
	}
	for _, ctx := range []context.Context{t.Context(), oci.WithActor(t.Context(), &oci.Actor{Addr: "192.0.2.1:1"})} {
		before := made.Load()
		if c, err := b.svc.Credential(ctx, repo, images[0], false, ""); !oci.HasCode(err, oci.CodeDenied) || made.Load() != before {
			t.Errorf("nobody in particular gets %+v, %v", c, err)
		}
	}
}
