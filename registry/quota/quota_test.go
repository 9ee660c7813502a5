package quota_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/quota"
)

// bed is a registry with quotas, and a way to look at it without them.
type bed struct {
	*registry.Registry
	limited oci.Registry
	limits  *quota.Limits
	cat     *catalog.Catalog
	store   *memstore.Store
}

func newBed(t *testing.T, quotas ...quota.Quota) *bed {
	t.Helper()
	c, err := catalog.Open(t.Context(), t.TempDir()+"/catalog.db", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	store := memstore.New(nil)
	r, err := registry.New(t.Context(), c, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(t.Context()) })
	for i := range quotas {
		if quotas[i].Match, err = patterns.CompileAll(quotas[i].Repositories); err != nil {
			t.Fatal(err)
		}
	}
	l := quota.New(quotas, c, slog.New(slog.DiscardHandler))
	return &bed{r, l.Registry(r), l, c, store}
}

// used returns what is really stored in the repositories of the first quota.
func (b *bed) used(t *testing.T, pattern string) catalog.Usage {
	t.Helper()
	match, err := patterns.CompileAll([]string{pattern})
	if err != nil {
		t.Fatal(err)
	}
	u, err := b.cat.Usage(t.Context(), 1, func(repo string) []int {
		if match(repo) {
			return []int{0}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return u[0]
}

// content returns n bytes that no other seed gives.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func push(t *testing.T, r oci.Registry, repo string, b []byte, sizeKnown bool) error {
	t.Helper()
	n := int64(-1)
	if sizeKnown {
		n = int64(len(b))
	}
	_, err := r.PushBlob(t.Context(), repo, oci.SHA256(b), n, bytes.NewReader(b))
	return err
}

const limit = 1 << 20

// TestConcurrentPushes lets many clients push at once, with and without a size, in one
// request and in several. The quota must never be exceeded, and be used nearly up.
func TestConcurrentPushes(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	b := newBed(t, quota.Quota{Repositories: []string{"team/**"}, Bytes: limit})
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for j := range 8 {
				c := content(uint64(100*i+j), 100_000+i)
				repo, err := fmt.Sprintf("team/%d", i%5), error(nil)
				switch i % 3 {
				case 0, 1:
					err = push(t, b.limited, repo, c, i%3 == 0)
				case 2:
					var up oci.UploadStatus
					if up, err = b.limited.StartUpload(t.Context(), repo); err == nil {
						if _, err = b.limited.AppendUpload(t.Context(), repo, up.ID, 0, -1, bytes.NewReader(c[:9000])); err == nil {
							_, err = b.limited.CommitUpload(t.Context(), repo, up.ID, 9000, int64(len(c)-9000), bytes.NewReader(c[9000:]), oci.SHA256(c))
						}
					}
				}
				if err != nil && !oci.HasCode(err, oci.CodeDenied) {
					t.Errorf("push: %v, want it stored or DENIED", err)
				}
			}
		})
	}
	wg.Wait()
	if u := b.used(t, "team/**"); u.Bytes > limit || u.Bytes < limit*3/4 {
		t.Errorf("%d bytes are stored, want nearly %d and not more", u.Bytes, limit)
	}
	if err := push(t, b.limited, "other", content(1, limit), true); err != nil {
		t.Errorf("a repository without a quota: %v", err)
	}
}

// TestWhatCounts checks that what is in a quota already costs nothing more, and that room
// that is freed can be used at once.
func TestWhatCounts(t *testing.T) {
	t.Parallel()
	b := newBed(t, quota.Quota{Repositories: []string{"team/**"}, Bytes: limit})
	ctx, half := t.Context(), content(1, limit/2+1)
	for _, repo := range []string{"team/a", "other"} {
		if err := push(t, b.limited, repo, half, true); err != nil {
			t.Fatalf("%s: %v", repo, err)
		}
	}
	foreign := content(2, limit/2+1)
	if err := push(t, b.limited, "other", foreign, true); err != nil {
		t.Fatal(err)
	}
	if _, err := b.limited.MountBlob(ctx, "team/b", "team/a", oci.SHA256(half)); err != nil {
		t.Errorf("a mount within the quota: %v", err)
	}
	if err := push(t, b.limited, "team/c", half, true); err != nil {
		t.Errorf("a push of what the quota counts already: %v", err)
	}
	_, err := b.limited.MountBlob(ctx, "team/b", "other", oci.SHA256(foreign))
	if !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("a mount from outside: %v, want DENIED", err)
	}
	for _, want := range []string{"team/**", "512.0 KiB of 1.0 MiB", "storage.quotas"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal is %v, which lacks %q", err, want)
		}
	}
	for _, repo := range []string{"team/a", "team/b", "team/c"} {
		if err := b.limited.DeleteBlob(ctx, repo, oci.SHA256(half)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.limited.MountBlob(ctx, "team/b", "other", oci.SHA256(foreign)); err != nil {
		t.Errorf("after a deletion there is no room: %v", err)
	}
	if u := b.used(t, "team/**"); u.Bytes != int64(len(foreign)) {
		t.Errorf("%d bytes are stored, want %d", u.Bytes, len(foreign))
	}
}

// TestNothingLost refuses the rest of an upload, makes room, and goes on where it stopped.
func TestNothingLost(t *testing.T) {
	t.Parallel()
	b := newBed(t, quota.Quota{Repositories: []string{"**"}, Bytes: limit})
	ctx, old, c := t.Context(), content(1, limit/2), content(2, limit*3/4)
	if err := push(t, b.limited, "a", old, true); err != nil {
		t.Fatal(err)
	}
	up, err := b.limited.StartUpload(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = b.limited.AppendUpload(ctx, "b", up.ID, 0, -1, io.MultiReader(bytes.NewReader(c))); !oci.HasCode(err, oci.CodeDenied) {
		t.Fatalf("an upload beyond the quota: %v, want DENIED", err)
	}
	if err := b.limited.DeleteBlob(ctx, "a", oci.SHA256(old)); err != nil {
		t.Fatal(err)
	}
	st, err := b.limited.UploadStatus(ctx, "b", up.ID)
	if err != nil || st.Size > limit/2 {
		t.Fatalf("the upload after the refusal: %+v, %v", st, err)
	}
	rest := c[st.Size:]
	if _, err := b.limited.CommitUpload(ctx, "b", up.ID, st.Size, int64(len(rest)), bytes.NewReader(rest), oci.SHA256(c)); err != nil {
		t.Errorf("go on after room was made: %v", err)
	}
	if err := push(t, b.limited, "c", content(3, limit/4), true); err != nil {
		t.Fatal(err)
	}
	if _, err := b.limited.StartUpload(ctx, "b"); !oci.HasCode(err, oci.CodeDenied) {
		t.Errorf("an upload when the quota is used up: %v, want DENIED before anything is sent", err)
	}
}

// TestTags checks that new tags count and moved tags do not.
func TestTags(t *testing.T) {
	t.Parallel()
	b := newBed(t, quota.Quota{Repositories: []string{"team/*"}, Tags: 3, Warn: 0.6})
	put := func(repo, name string, tags ...string) error {
		body := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"name":%q}}`, oci.MediaTypeOCIIndex, name)
		_, err := b.limited.PutManifest(t.Context(), repo, oci.PutManifest{Tags: tags, MediaType: oci.MediaTypeOCIIndex, Bytes: body})
		return err
	}
	for i, c := range []struct {
		repo, name, tag string
		denied          bool
	}{
		{"team/a", "one", "1", false}, {"team/a", "two", "1", false}, {"team/b", "one", "1", false}, {"team/b", "one", "2", false},
		{"team/b", "one", "3", true}, {"team/a", "three", "2", true}, {"team/b", "two", "2", false}, {"other", "one", "9", false},
	} {
		err := put(c.repo, c.name, c.tag)
		if c.denied != oci.HasCode(err, oci.CodeDenied) || !c.denied && err != nil {
			t.Errorf("step %d, %s:%s: %v, want it denied: %v", i, c.repo, c.tag, err, c.denied)
		}
	}
	if err := put("team/a", "three"); err != nil {
		t.Errorf("a manifest without a tag: %v", err)
	}
	st, err := b.limits.Status(t.Context())
	if err != nil || len(st) != 1 || st[0].Tags != 3 || st[0].State != "reached" {
		t.Errorf("the status is %+v, %v", st, err)
	}
	if err := b.limited.DeleteTag(t.Context(), "team/a", "1"); err != nil {
		t.Fatal(err)
	}
	if err := put("team/a", "three", "2"); err != nil {
		t.Errorf("after a deletion there is no room: %v", err)
	}
}

// TestKnown checks that what is known without a count follows what is stored through this
// server, for all quotas or for those of one repository.
func TestKnown(t *testing.T) {
	b := newBed(t, quota.Quota{Repositories: []string{"team/**"}, Bytes: 1000, Warn: 0.8}, quota.Quota{Repositories: []string{"team/a", "other"}, Tags: 5, Warn: 0.8})
	var none *quota.Limits
	if k := append(none.Known(""), b.limits.Known("")...); len(k) != 0 {
		t.Errorf("before a count %+v is known", k)
	}
	if _, err := b.limits.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	rng, stored := rand.New(rand.NewPCG(5, 6)), map[string]int64{}
	for i := range 8 {
		repo, n := []string{"team/a", "team/b", "other"}[rng.IntN(3)], 100+rng.IntN(20)
		if err := push(t, b.limited, repo, content(uint64(i), n), true); err != nil {
			t.Fatal(err)
		}
		stored[repo] += int64(n)
		team, both := stored["team/a"]+stored["team/b"], stored["team/a"]+stored["other"]
		state := "ok"
		if team >= 800 {
			state = "warning"
		}
		teams, some := quota.Status{Repositories: []string{"team/**"}, Bytes: team, BytesLimit: 1000, State: state}, quota.Status{Repositories: []string{"team/a", "other"}, Bytes: both, TagsLimit: 5, State: "ok"}
		for repo, want := range map[string][]quota.Status{"": {teams, some}, "team/a": {teams, some}, "team/b": {teams}, "other": {some}, "nowhere": nil} {
			if diff := cmp.Diff(want, b.limits.Known(repo)); diff != "" {
				t.Errorf("after %d pushes, of %q (-want +got):\n%s", i+1, repo, diff)
			}
		}
	}
}
