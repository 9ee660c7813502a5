package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/historyfacts"
)

// TestHistoryModel makes random changes of tags and compares the histories with a list of the
// changes that were made. It also checks that whatever was deleted is listed until it is back.
func TestHistoryModel(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		now := time.UnixMilli(1_700_000_000_000)
		c := open(t, b, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Hour})
		if err := putBlob(t.Context(), c, "r", catalog.Blob{Digest: oci.SHA256([]byte("x")), Size: 1, Content: []byte("x")}, ""); err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		want := map[string][]oci.TagChange{}
		at := map[string]oci.Digest{}
		deleted := map[oci.Digest]bool{}
		note := func(tag string, d oci.Digest, cause, by string) {
			if at[tag] == d {
				return
			}
			at[tag] = d
			want[tag] = append(want[tag], oci.TagChange{Digest: d, At: now, Cause: cause, By: by})
		}
		for range 150 {
			now = now.Add(time.Second)
			by := []string{"", "alice", "bob"}[rnd.IntN(3)]
			ctx := oci.WithActor(t.Context(), &oci.Actor{Name: by})
			tag := fmt.Sprintf("t%d", rnd.IntN(4))
			m := manifestOf(fmt.Sprintf("m%d", rnd.IntN(4)), 0, 0, tag)
			switch rnd.IntN(4) {
			case 0, 1:
				m.Origin = catalog.OriginOf(ctx, oci.CausePush)
				if _, err := c.PutManifest(ctx, "r", m); err != nil {
					t.Fatal(err)
				}
				note(tag, m.Digest, oci.CausePush, by)
				delete(deleted, m.Digest)
			case 2:
				err := c.DeleteTag(ctx, "r", tag, nil)
				if (err == nil) != (at[tag] != "") {
					t.Fatalf("delete the tag %s, which is %q: %v", tag, at[tag], err)
				}
				note(tag, "", oci.CauseDelete, by)
			case 3:
				if _, err := c.DeleteManifest(ctx, "r", m.Digest, nil); errors.Is(err, catalog.ErrNotFound) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				deleted[m.Digest] = true
				for tag, d := range at {
					if d == m.Digest {
						note(tag, "", oci.CauseDelete, by)
					}
				}
			}
			checkHistory(t, c, want, deleted)
		}
	})
}

func checkHistory(t *testing.T, c *catalog.Catalog, want map[string][]oci.TagChange, deleted map[oci.Digest]bool) {
	t.Helper()
	for tag, changes := range want {
		got, err := history(c).Tag(t.Context(), "r", tag, 1000)
		if err != nil || len(got) != len(changes) {
			t.Fatalf("%s has %d changes (%v), want %d: %+v", tag, len(got), err, len(changes), got)
		}
		slices.Reverse(got)
		for i, g := range got {
			w := changes[i]
			if g.State != "" && (g.State == oci.StateDeleted) != deleted[g.Digest] {
				t.Fatalf("change %d of %s is %+v; deleted are %v", i, tag, g, deleted)
			}
			if g.Digest != w.Digest || !g.At.Equal(w.At) || g.Cause != w.Cause || g.By != w.By {
				t.Fatalf("change %d of %s is %+v, want %+v", i, tag, g, w)
			}
		}
	}
	list, err := history(c).Deleted(t.Context(), "r", 1000)
	if err != nil || len(list) != len(deleted) {
		t.Fatalf("%d manifests can be restored (%v), want %d: %+v", len(list), err, len(deleted), list)
	}
	for _, d := range list {
		found, content, err := history(c).DeletedManifest(t.Context(), "r", d.Digest)
		if !deleted[d.Digest] || err != nil || oci.SHA256(content) != d.Digest || found.Until.Sub(found.At) != time.Hour || d.MediaType != found.MediaType {
			t.Errorf("%+v can be restored with %q: %v", found, content, err)
		}
	}
}

// TestHistoryEnds checks that a history is bounded, that it begins with what the tag was before
// histories were kept, that a collection ends what can be restored, and that a repository takes
// its history with it.
func TestHistoryEnds(t *testing.T) {
	servers.OnBoth(t, func(t *testing.T, b *catalogtest.Bed) {
		now := time.UnixMilli(1_700_000_000_000)
		c, ctx := open(t, b, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Hour}), t.Context()
		put := func(repo string, m catalog.NewManifest, cause string) oci.Digest {
			t.Helper()
			m.Origin = catalog.Origin{Cause: cause}
			if _, err := c.PutManifest(ctx, repo, m); err != nil {
				t.Fatal(err)
			}
			return m.Digest
		}
		rows := func() (n int) {
			t.Helper()
			if err := c.DB.Row(ctx, `SELECT (SELECT COUNT(*) FROM tag_history) + (SELECT COUNT(*) FROM trash)`, nil, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		collect := func() {
			t.Helper()
			for {
				out, _, err := c.Garbage.Collect(ctx, catalog.CollectOptions{Before: now, Untagged: true})
				if err != nil {
					t.Fatal(err)
				}
				if out.Examined == 0 {
					return
				}
			}
		}
		old := put("r", manifestOf("old", 0, 0, "t", "stays"), "") // as an earlier version would
		list, err := history(c).Tag(ctx, "r", "t", 9)
		if err != nil || len(list) != 1 || list[0].Digest != old || list[0].Cause != "" || list[0].State != oci.StateHere {
			t.Errorf("before histories were kept: %+v, %v", list, err)
		}
		for i := range 130 {
			put("r", manifestOf(fmt.Sprint("new ", i), 0, 0, "t"), oci.CausePush)
			if i == 0 {
				if list, err = history(c).Tag(ctx, "r", "t", 9); err != nil || len(list) != 2 || list[1].Digest != old {
					t.Errorf("after the first change: %+v, %v", list, err)
				}
			}
		}
		if list, err = history(c).Tag(ctx, "r", "t", 1000); err != nil || len(list) != 100 || list[0].Digest != manifestOf("new 129", 0, 0).Digest {
			t.Errorf("%d changes are kept, %v", len(list), err)
		}
		if _, err := history(c).Tag(ctx, "r", "none", 9); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("a tag that never was: %v", err)
		}

		if _, err := c.DeleteManifest(ctx, "r", manifestOf("new 129", 0, 0).Digest, nil); err != nil {
			t.Fatal(err)
		}
		collect() // the grace period is not over
		if list, err := history(c).Deleted(ctx, "r", 9); err != nil || len(list) != 1 || !slices.Equal(list[0].Tags, []string{"t"}) {
			t.Errorf("deleted: %+v, %v", list, err)
		}
		now = now.Add(2 * time.Hour)
		collect()
		now = now.Add(2 * time.Hour)
		collect()
		if list, err := history(c).Deleted(ctx, "r", 9); err != nil || len(list) != 0 {
			t.Errorf("after the collection there can be restored: %+v, %v", list, err)
		}
		if list, err = history(c).Tag(ctx, "r", "t", 9); err != nil || list[0].Digest != "" || list[1].State != oci.StateGone {
			t.Errorf("after the collection: %+v, %v", list, err)
		}
		now = now.Add(91 * 24 * time.Hour)
		collect()
		if _, err := history(c).Tag(ctx, "r", "t", 9); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("long after: %v", err)
		}

		manifests, err := history(c).Manifests(ctx, "r", 9)
		if err != nil || !slices.Equal(manifests, []oci.Digest{old}) {
			t.Errorf("the manifests are %v, %v", manifests, err)
		}
		if tags, err := c.DeleteManifest(ctx, "r", old, nil); err != nil || !slices.Equal(tags, []string{"stays"}) {
			t.Errorf("%v went, %v", tags, err)
		}
		if rows() == 0 {
			t.Error("the repository cannot be restored")
		}
		for range 3 {
			now = now.Add(2 * time.Hour)
			collect()
		}
		if n := rows(); n != 0 {
			t.Errorf("%d rows outlive their repository", n)
		}
		if _, err := history(c).Manifests(ctx, "r", 9); !errors.Is(err, catalog.ErrNoRepository) {
			t.Errorf("the repository is still there: %v", err)
		}
	})
}

func history(c *catalog.Catalog) historyfacts.History { return historyfacts.History{DB: c.DB} }
