package quota_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/history"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/storage"
)

// TestTagsModel pushes, deletes, loses and restores images in a random order, and compares
// each answer with a model: what gives a repository a new tag is refused when the quota is
// used up, and nothing else ever is. So the quota is never exceeded, and an image of which
// something is lost can always be pushed again.
func TestTagsModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testTagsModel(t, seed) })
	}
}

func testTagsModel(t *testing.T, seed uint64) {
	const limit, repo = 3, "team/a"
	b := newBed(t, quota.Quota{Repositories: []string{"team/*"}, Tags: limit})
	h := history.New(b.cat, b.limited, history.Options{})
	rng, ctx := rand.New(rand.NewPCG(seed, 7)), t.Context()
	layers, manifests := make([][]byte, 4), make([][]byte, 4)
	for i := range layers {
		layers[i] = content(seed*100+uint64(i), catalog.InlineMax+1) // an object, which can get lost
		manifests[i] = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},`+
			`"layers":[{"mediaType":"application/octet-stream","digest":%q,"size":%d}]}`, oci.MediaTypeOCIManifest, oci.SHA256([]byte("{}")), oci.SHA256(layers[i]), len(layers[i]))
	}
	names := []string{"1", "2", "3", "4", "5"}
	tags := map[string]oci.Digest{}
	for step := range 150 {
		i, tag := rng.IntN(len(layers)), names[rng.IntN(len(names))]
		d := oci.SHA256(manifests[i])
		what, before, fresh, err := "", int64(len(tags)), int64(0), error(nil)
		switch rng.IntN(7) {
		case 0, 1, 2:
			m := oci.PutManifest{MediaType: oci.MediaTypeOCIManifest, Bytes: manifests[i], Tags: []string{tag, tag, names[rng.IntN(len(names))]}}
			what = fmt.Sprint("push ", i, " as ", m.Tags)
			for _, c := range [][]byte{[]byte("{}"), layers[i]} {
				if err := push(t, b.Registry, repo, c, true); err != nil {
					t.Fatalf("step %d, %s: %v", step, what, err)
				}
			}
			fresh = added(tags, slices.Clone(m.Tags)...)
			if _, err = b.limited.PutManifest(ctx, repo, m); err == nil {
				for _, tag := range m.Tags {
					tags[tag] = d
				}
			}
		case 3:
			what = "delete tag " + tag
			if err = b.limited.DeleteTag(ctx, repo, tag); err == nil {
				delete(tags, tag)
			}
		case 4:
			what = fmt.Sprint("delete image ", i)
			if err = b.limited.DeleteManifest(ctx, repo, d); err == nil {
				for tag, at := range tags {
					if at == d {
						delete(tags, tag)
					}
				}
			}
		case 5:
			what, fresh = fmt.Sprint("restore ", i, " as ", tag), added(tags, tag)
			if _, err = h.Restore(ctx, repo, d, tag); err == nil {
				tags[tag] = d
			}
		default:
			what = fmt.Sprint("lose a part of ", i)
			if rng.IntN(2) == 0 {
				_ = b.store.Delete(ctx, storage.BlobKey(oci.SHA256(layers[i]))) // it may not be there
			} else {
				_, _ = repair.New(b.cat.DB).MarkAbsent(ctx, d, true) // nor this
			}
		}
		must := fresh > 0 && before+fresh > limit
		if denied := oci.HasCode(err, oci.CodeDenied); denied && !must || must && err == nil {
			t.Fatalf("step %d, %s with the tags %v: %v, want it denied: %v", step, what, tags, err, must)
		}
		if u := b.used(t, "team/*"); u.Tags > limit || u.Tags != int64(len(tags)) {
			t.Fatalf("step %d, %s: %d tags, want %d and at most %d", step, what, u.Tags, len(tags), limit)
		}
	}
}

// added returns how many of the names are not among the tags, each counted once.
func added(tags map[string]oci.Digest, names ...string) (n int64) {
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, ok := tags[name]; !ok {
			n++
		}
	}
	return n
}
