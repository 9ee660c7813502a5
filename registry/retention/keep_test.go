package retention_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/retention"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
)

// TestPartsOfImmutable checks that nothing that an immutable tag points at can be deleted, at any
// depth, while everything else can.
func TestPartsOfImmutable(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Immutable: func(_, tag string) bool { return tag == "v1" }})
	ctx := t.Context()
	leaf, config, layer, _ := b.PushImage("a", 1)
	own, _, _, _ := b.PushImage("a", 2, "own")
	inner := b.PushManifest("a", registrytest.IndexOf(leaf, own))
	top := b.PushManifest("a", registrytest.IndexOf(inner), "v1", "also")
	other, _, _, _ := b.PushImage("a", 3)
	b.PushManifest("a", registrytest.IndexOf(leaf, other), "v2")
	for name, d := range map[string]oci.Digest{"leaf": leaf.Digest, "tagged leaf": own.Digest, "inner index": inner.Digest, "index": top.Digest} {
		err := b.DeleteManifest(ctx, "a", d)
		if !oci.HasCode(err, oci.CodeDenied) || !strings.Contains(err.Error(), "v1") {
			t.Errorf("delete the %s: %v, want a refusal that names the tag", name, err)
		}
	}
	for _, d := range []oci.Digest{config.Digest, layer.Digest} {
		if err := b.DeleteBlob(ctx, "a", d); err == nil {
			t.Errorf("blob %s is deleted", d)
		}
	}
	if err := b.DeleteManifest(ctx, "a", other.Digest); err != nil {
		t.Errorf("delete what only v2 names: %v", err)
	}
	if err := b.DeleteTag(ctx, "a", "own"); err != nil {
		t.Errorf("delete a tag of a part: %v", err)
	}
	if _, err := retention.Apply(ctx, b.Registry, []retention.Rule{{Repositories: only("a"), KeepTags: []*regexp.Regexp{regexp.MustCompile("none")}}}, retention.Options{Now: true}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		b.Clock.Add(48 * time.Hour)
		if _, err := b.Collect(ctx, registry.CollectOptions{Untagged: true}); err != nil {
			t.Fatal(err)
		}
	}
	registrytest.Reachable(t, b)
	for _, d := range []oci.Digest{leaf.Digest, own.Digest, inner.Digest, top.Digest} {
		if _, err := b.GetManifest(ctx, "a", string(d)); err != nil {
			t.Errorf("part of v1: %v", err)
		}
	}
}

// TestHungTags checks that a tag that is attached to an image by its name takes no other tag's
// place, whatever its suffix. The tag stays as long as its image and is removed with it. If the
// image no longer exists, the tag is removed by itself.
func TestHungTags(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, suffix := range []string{".sig", ".att", ".sbom", ".src", ".dockerfile", ".cosign.bundle", ".1-x.sig", ""} {
		for _, image := range []string{"here", "gone", "deleted", "elsewhere", "fresh"} {
			t.Run(suffix+" "+image, func(t *testing.T) {
				b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
				for i := range 2 {
					b.PushImage("a", uint64(i), fmt.Sprint("v", i))
					b.Clock.Add(time.Minute)
				}
				d := oci.SHA256([]byte("nothing"))
				switch image {
				case "here":
					m, err := b.GetManifest(t.Context(), "a", "v1")
					if err != nil {
						t.Fatal(err)
					}
					d = m.Digest
				case "elsewhere":
					m, _, _, _ := b.PushImage("b", 7, "v7")
					d = m.Digest
				case "deleted":
					m, _, _, _ := b.PushImage("a", 7, "v7")
					d = m.Digest
				}
				hung := oci.ReferrersTag(d) + suffix
				b.PushImage("a", 10, hung)
				if image == "deleted" {
					if err := b.DeleteManifest(t.Context(), "a", d); err != nil {
						t.Fatal(err)
					}
				}
				if image != "fresh" {
					b.Clock.Add(2 * time.Hour)
				}
				if _, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{{Repositories: only("a"), KeepNewest: 2}}, retention.Options{}); err != nil {
					t.Fatal(err)
				}
				want := "v0 v1"
				if image == "here" || image == "elsewhere" || image == "fresh" {
					want = hung + " v0 v1"
				}
				if tags, _, err := b.Tags(t.Context(), "a", "", 10); err != nil || strings.Join(tags, " ") != want {
					t.Errorf("left %v, %v, want %s", tags, err, want)
				}
			})
		}
	}
}

// TestPrefixedHungTags checks that what cosign attaches with --attachment-tag-prefix takes no image's
// place, and goes once its image is gone. A tag that only ends with a digest is one of an image.
func TestPrefixedHungTags(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	for i := range 3 {
		m, _, _, _ := b.PushImage("a", uint64(i), fmt.Sprint("v", i))
		for _, kind := range []string{"sig", "att", "sbom"} {
			b.PushImage("a", uint64(10+i), "prod"+oci.ReferrersTag(m.Digest)+"."+kind)
		}
		b.Clock.Add(time.Minute)
	}
	build := "build-" + oci.ReferrersTag(oci.SHA256([]byte("source")))
	b.PushImage("a", 20, build)
	for range 2 {
		b.Clock.Add(2 * time.Hour)
		if _, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{{Repositories: only("a"), KeepNewest: 2}}, retention.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	tags, _, err := b.Tags(t.Context(), "a", "", 100)
	if err != nil || len(tags) != 5 || tags[0] != build || tags[4] != "v2" {
		t.Errorf("left %v, %v; want %s, v2 and its three attachments", tags, err, build)
	}
}

// TestSignatureRepository makes random images, whose attachments are in a repository of their own, as
// with COSIGN_REPOSITORY, alone or beside images. Rules for all repositories may not take an
// attachment from an image that is there, and the attachments of other images may not pile up.
func TestSignatureRepository(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 26))
		b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
		type attached struct {
			image oci.Digest
			tag   string
		}
		var list []attached
		for i := range uint64(12) {
			d := oci.SHA256(fmt.Append(nil, seed, i)) // an image of another registry
			if rnd.IntN(4) > 0 {
				m, _, _, _ := b.PushImage([]string{"app", "web"}[rnd.IntN(2)], 100*seed+i, fmt.Sprint("v", i))
				d = m.Digest
			}
			for _, kind := range []string{".sig", ".att", ".sbom"}[:1+rnd.IntN(3)] {
				list = append(list, attached{d, oci.ReferrersTag(d) + kind})
			}
			b.Clock.Add(time.Minute)
		}
		rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for i, a := range list {
			b.PushImage("signatures", 10_000+100*seed+uint64(i), a.tag)
			b.Clock.Add(time.Minute)
		}
		beside := seed%3 == 0
		if beside {
			b.PushImage("signatures", 20_000, "v1")
		}
		const keep = 2
		for range 2 {
			b.Clock.Add(3 * time.Hour)
			rule := retention.Rule{Repositories: func(string) bool { return true }, KeepNewest: keep}
			if _, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{rule}, retention.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		others := map[oci.Digest]bool{}
		for _, a := range list {
			_, inApp := b.GetManifest(t.Context(), "app", string(a.image))
			_, inWeb := b.GetManifest(t.Context(), "web", string(a.image))
			_, err := b.GetManifest(t.Context(), "signatures", a.tag)
			switch here := inApp == nil || inWeb == nil; {
			case here && err != nil:
				t.Errorf("seed %d: %s of an image that is here: %v", seed, a.tag, err)
			case !here && err == nil:
				others[a.image] = true
			}
		}
		if len(others) > keep || beside && len(others) > 0 {
			t.Errorf("seed %d: attachments of %d images that are not here are left, want at most %d", seed, len(others), keep)
		}
	}
}

// TestDryRunAcrossRepositories makes random images in several repositories, with tags that belong
// to images of any of them, and wants the run to decide as the dry run did.
func TestDryRunAcrossRepositories(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 24))
		b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
		var images []oci.Descriptor
		for i := range uint64(12) {
			repo := fmt.Sprint("r", rnd.IntN(3))
			if len(images) > 0 && rnd.IntN(2) == 0 {
				b.PushImage(repo, i, oci.ReferrersTag(images[rnd.IntN(len(images))].Digest)+".sig")
			} else {
				m, _, _, _ := b.PushImage(repo, i%8, fmt.Sprint("v", i)) // some in several repositories
				images = append(images, m)
			}
			b.Clock.Add(time.Minute)
		}
		b.Clock.Add(3 * time.Hour)
		rules := []retention.Rule{{Repositories: func(string) bool { return true }, KeepNewest: 1}}
		dry, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(dry, rep); diff != "" {
			t.Errorf("seed %d: the run differs from the dry run (-dry +run):\n%s", seed, diff)
		}
	}
}

// TestSHA512Hung covers SHA-512, of which a tag has room for no more than half.
func TestSHA512Hung(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	config := b.PushBytes("a", []byte("{}"))
	raw := []byte(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"x/y","digest":%q,"size":2},"layers":[]}`, oci.MediaTypeOCIManifest, config.Digest))
	d := oci.Digest("sha512:" + strings.Repeat("0", 128)).Algorithm().FromBytes(raw)
	if _, err := b.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: raw, Digest: d, Tags: []string{"old"}}); err != nil {
		t.Fatal(err)
	}
	b.PushImage("a", 1, oci.ReferrersTag(d)+".sig")
	b.Clock.Add(2 * time.Hour)
	b.PushImage("a", 2, "new")
	b.Clock.Add(2 * time.Hour)
	rules := []retention.Rule{{Repositories: only("a"), KeepNewest: 2}}
	for range 2 {
		rep, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{})
		if want := 3 - rep.Removed; err != nil || rep.Kept != want || rules[0].KeepNewest == 2 && rep.Removed != 0 || rules[0].KeepNewest == 1 && rep.Removed != 2 {
			t.Errorf("newest %d: got %+v, %v", rules[0].KeepNewest, rep, err)
		}
		rules[0].KeepNewest = 1
	}
}

// TestCopyTags checks that a tag sha256-<hex> at the very image that it names neither keeps the
// image nor counts.
func TestCopyTags(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	for i := range 4 {
		m, _, _, _ := b.PushImage("a", uint64(i))
		ix := b.PushManifest("a", registrytest.IndexOf(m), fmt.Sprint("v", i))
		for _, d := range []oci.Descriptor{m, ix} {
			raw, err := b.GetManifest(t.Context(), "a", string(d.Digest))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: raw.Bytes, Tags: []string{oci.ReferrersTag(d.Digest)}}); err != nil {
				t.Fatal(err)
			}
		}
		b.Clock.Add(time.Minute)
	}
	alone, _, _, _ := b.PushImage("a", 9)
	raw, _ := b.GetManifest(t.Context(), "a", string(alone.Digest))
	if _, err := b.PutManifest(t.Context(), "a", oci.PutManifest{Bytes: raw.Bytes, Tags: []string{oci.ReferrersTag(alone.Digest)}}); err != nil {
		t.Fatal(err)
	}
	b.Clock.Add(3 * time.Hour)
	rep, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{{Repositories: only("a"), KeepNewest: 2}}, retention.Options{})
	// The image with only such a tag is the newest, v3 the second; six manifests and nine tags go.
	if err != nil || rep.Removed != 9 || rep.Kept != 4 || rep.Manifests != 6 {
		t.Errorf("got %+v, %v", rep, err)
	}
	registrytest.Reachable(t, b)
}

// TestRetainClock checks that nothing is removed by a clock that is far from the newest record, or
// far from the time of the last run even if somebody has pulled since.
func TestRetainClock(t *testing.T) {
	rules := []retention.Rule{{Repositories: only("a"), KeepYounger: day}}
	for _, tc := range []struct {
		name   string
		step   time.Duration
		pulled bool // after the clock's step
		ran    bool // before the step
		want   bool // the run must be refused
		// restarted says that the registry does not run while the clock steps.
		restarted bool
	}{
		{"a week", 7 * day, false, false, false, false},
		{"a year", 365 * day, false, false, true, false},
		{"a year, pulled", 365 * day, true, true, true, false},
		{"a week, pulled", 7 * day, true, true, false, false},
		{"back", -2 * day, false, false, true, false},
		{"back, pulled", -2 * day, true, true, true, false},
		{"back a little", -time.Minute, false, true, false, false},
		{"a year, and a pull after the start", 365 * day, true, false, true, true},
		{"a week, and a pull after the start", 7 * day, true, false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
			b.PushImage("a", 1, "v1")
			b.Clock.Add(2 * time.Hour)
			if tc.ran {
				if _, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			b.Clock.Add(tc.step)
			if tc.restarted {
				b.Restart(t)
			}
			if tc.pulled {
				if _, err := b.GetManifest(t.Context(), "a", "v1"); err != nil {
					t.Fatal(err)
				}
			}
			for _, dry := range []bool{true, false} {
				rep, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{DryRun: dry})
				if errors.Is(err, retention.ErrClock) != tc.want || !tc.want && err != nil || err != nil && rep.Removed > 0 {
					t.Errorf("dry %v: got %+v, %v, want a refusal: %v", dry, rep, err, tc.want)
				}
			}
			if tc.want {
				for _, trust := range []bool{true, false} {
					if _, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{TrustClock: trust}); err != nil && !(tc.step < 0 || !tc.pulled) {
						t.Errorf("with trust %v: %v", trust, err)
					}
				}
			}
		})
	}
}

// TestPullDepth checks that a pull of a platform counts for every index above it.
func TestPullDepth(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	leaf, _, _, _ := b.PushImage("a", 1)
	b.PushManifest("a", registrytest.IndexOf(b.PushManifest("a", registrytest.IndexOf(leaf))), "deep")
	b.PushImage("a", 2, "unused")
	b.Clock.Add(2 * day)
	if _, err := b.ResolveManifest(t.Context(), "a", string(leaf.Digest)); err != nil {
		t.Fatal(err)
	}
	b.Clock.Add(2 * time.Hour)
	rep, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{{Repositories: only("a"), KeepPulledWithin: day}}, retention.Options{})
	if err != nil || rep.Kept != 1 || rep.Removed != 1 {
		t.Errorf("got %+v, %v, want deep kept", rep, err)
	}
}
