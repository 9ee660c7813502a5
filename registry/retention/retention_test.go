package retention_test

import (
	"fmt"
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

const day = 24 * time.Hour

// TestRetainRules pushes one image a day with the tags d9 (first) to d0 (last), and "stable" as the
// third. It pulls d7 now, and then applies the rules.
func TestRetainRules(t *testing.T) {
	all := only("apps/web")
	tests := []struct {
		name  string
		rules []retention.Rule
		want  string // the tags that stay
	}{
		{"no rule for the repository", []retention.Rule{{Repositories: only("other"), KeepNewest: 1}}, "d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 stable"},
		{"newest", []retention.Rule{{Repositories: all, KeepNewest: 3}}, "d0 d1 stable"},
		{"newest more than there are", []retention.Rule{{Repositories: all, KeepNewest: 30}}, "d0 d1 d2 d3 d4 d5 d6 d7 d8 d9 stable"},
		{"by name", []retention.Rule{{Repositories: all, KeepTags: []*regexp.Regexp{regexp.MustCompile("^stable$"), regexp.MustCompile("^d[45]$")}}}, "d4 d5 stable"},
		// stable is as old as d2; the clock has moved on by a day since d0.
		{"younger", []retention.Rule{{Repositories: all, KeepYounger: 3*day + time.Hour}}, "d0 d1 d2 stable"},
		{"pulled", []retention.Rule{{Repositories: all, KeepPulledWithin: day}}, "d7 d8"},
		{"clauses of a rule", []retention.Rule{{Repositories: all, KeepNewest: 1, KeepPulledWithin: day}}, "d0 d7 d8"},
		{"any rule", []retention.Rule{
			{Repositories: only("apps/web"), KeepNewest: 1},
			{Repositories: only("apps/web"), KeepTags: []*regexp.Regexp{regexp.MustCompile("stable")}},
		}, "d0 stable"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
			for i := range 10 {
				m, _, _, _ := b.PushImage("apps/web", uint64(i), fmt.Sprintf("d%d", 9-i))
				if i == 7 {
					raw, err := b.GetManifest(t.Context(), "apps/web", string(m.Digest))
					if err != nil {
						t.Fatal(err)
					}
					if _, err := b.PutManifest(t.Context(), "apps/web", oci.PutManifest{Bytes: raw.Bytes, Tags: []string{"stable"}}); err != nil {
						t.Fatal(err)
					}
				}
				b.Clock.Add(day)
			}
			old, err := b.ResolveManifest(t.Context(), "apps/web", "d8")
			if err != nil {
				t.Fatal(err)
			}
			// The pull of d2's manifest above, by digest, is three days old by now.
			for _, ref := range []string{"d7", string(old.Digest)} {
				if _, err := b.GetManifest(t.Context(), "apps/web", ref); err != nil {
					t.Fatal(err)
				}
			}
			dry, err := retention.Apply(t.Context(), b.Registry, test.rules, retention.Options{DryRun: true})
			if err != nil {
				t.Fatal(err)
			}
			before, _, _ := b.Tags(t.Context(), "apps/web", "", 100)
			if len(before) != 11 {
				t.Fatalf("a dry run left %v", before)
			}
			rep, err := retention.Apply(t.Context(), b.Registry, test.rules, retention.Options{})
			if err != nil {
				t.Fatal(err)
			}
			tags, _, err := b.Tags(t.Context(), "apps/web", "", 100)
			if got := strings.Join(tags, " "); err != nil || got != test.want {
				t.Errorf("left %q, want %q (%v)", got, test.want, err)
			}
			if diff := cmp.Diff(dry.Decisions, rep.Decisions); diff != "" {
				t.Errorf("the dry run decided otherwise (-dry +real):\n%s", diff)
			}
			if rep.Repositories > 0 && (rep.Kept != len(tags) || rep.Removed != 11-len(tags)) {
				t.Errorf("report %+v does not fit %v", rep, tags)
			}
		})
	}
}

func TestRetainFreesSpace(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	ctx := t.Context()
	// This is an index with two platforms, one of which has its own tag, a signature of the index,
	// and a cosign-style signature.
	amd, _, _, _ := b.PushImage("a/x", 1)
	arm, _, _, _ := b.PushImage("a/x", 2, "arm")
	index := b.PushManifest("a/x", registrytest.IndexOf(amd, arm), "old")
	config := b.PushBytes("a/x", []byte("{}"))
	sig := registrytest.ImageOf(config)
	sig.Subject = &index
	signature := b.PushManifest("a/x", sig)
	hung := "sha256-" + index.Digest.Encoded() + ".sig"
	b.PushImage("a/x", 3, hung)
	b.Clock.Add(2 * time.Hour)
	b.PushImage("a/x", 4, "new")
	b.Clock.Add(2 * time.Hour)

	rules := []retention.Rule{{Repositories: only("a/x"), KeepNewest: 1, KeepTags: []*regexp.Regexp{regexp.MustCompile("^arm$")}}}
	dry, err := retention.Apply(ctx, b.Registry, rules, retention.Options{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if dry.Removed != 2 || dry.Kept != 2 {
		t.Errorf("dry run: %+v; old and its signature's tag should go", dry)
	}
	rep, err := retention.Apply(ctx, b.Registry, rules, retention.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// These are the index, amd, its signature, and the image under the hung tag.
	if rep.Removed != 2 || rep.Manifests != 4 {
		t.Errorf("got %+v, want 2 tags and 4 manifests removed", rep)
	}
	for _, d := range []oci.Digest{index.Digest, amd.Digest, signature.Digest} {
		if _, err := b.ResolveManifest(ctx, "a/x", string(d)); !oci.HasCode(err, oci.CodeManifestUnknown) {
			t.Errorf("manifest %s is still there (%v)", d, err)
		}
	}
	b.Clock.Add(2 * time.Hour)
	if _, err := b.Collect(ctx, registry.CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	n, err := b.Cat.Counts(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n.Manifests != 2 || n.Blobs != 8 {
		t.Errorf("%d manifests and %d contents are left, want arm and new with their 6 blobs", n.Manifests, n.Blobs)
	}
	if got := registrytest.Reachable(t, b); len(got) != 10 {
		t.Errorf("%d things can be read, want 2 tags, 2 manifests, 6 blobs", len(got))
	}
}

func TestRetainLeavesAlone(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour, Immutable: func(_, tag string) bool { return tag == "v1" }})
	ctx := t.Context()
	b.PushImage("a", 1, "v1")
	told, _, _, _ := b.PushImage("a", 2, "told")
	b.Clock.Add(2 * time.Hour)
	b.PushImage("a", 3, "new")
	rules := []retention.Rule{{Repositories: only("a"), KeepNewest: 1}}
	// A client asks for the manifest, perhaps to name it in an index.
	if _, err := b.ResolveManifest(ctx, "a", string(told.Digest)); err != nil {
		t.Fatal(err)
	}
	rep, err := retention.Apply(ctx, b.Registry, rules, retention.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Removed != 0 || rep.Kept != 3 {
		t.Errorf("got %+v, want everything kept", rep)
	}
	if rep, err = retention.Apply(ctx, b.Registry, rules, retention.Options{Now: true}); err != nil || rep.Removed != 1 {
		t.Errorf("got %+v and %v, want the tag told removed", rep, err)
	}
	if tags, _, _ := b.Tags(ctx, "a", "", 10); strings.Join(tags, " ") != "new v1" {
		t.Errorf("left %v", tags)
	}
}

func TestCheckRetention(t *testing.T) {
	for _, rule := range []retention.Rule{{KeepNewest: 1}, {Repositories: only("a")}, {Repositories: only("a"), KeepNewest: -1}} {
		if err := retention.Check([]retention.Rule{rule}); err == nil {
			t.Errorf("rule %+v is taken", rule)
		}
	}
}

// TestRetainSignatureRepository keeps the signatures of images in a separate repository without
// images. They stay as long as their images do, whatever a rule says.
func TestRetainSignatureRepository(t *testing.T) {
	tests := []struct {
		name string
		rule retention.Rule
		want int // number of signatures that stay
	}{
		{"younger", retention.Rule{KeepYounger: 30 * day}, 3},
		{"newest", retention.Rule{KeepNewest: 2}, 3},
		{"by name", retention.Rule{KeepTags: []*regexp.Regexp{regexp.MustCompile(`\.sig$`)}}, 3},
		{"nothing", retention.Rule{KeepTags: []*regexp.Regexp{regexp.MustCompile("none")}}, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
			for i := range 3 {
				m, _, _, _ := b.PushImage("apps", uint64(i), fmt.Sprint("v", i))
				b.PushImage("signatures", uint64(10+i), "sha256-"+m.Digest.Encoded()+".sig")
				b.Clock.Add(day)
			}
			test.rule.Repositories = only("signatures")
			for _, dry := range []bool{true, false} {
				rep, err := retention.Apply(t.Context(), b.Registry, []retention.Rule{test.rule}, retention.Options{DryRun: dry})
				if err != nil || rep.Kept != test.want || rep.Removed != 3-test.want {
					t.Errorf("dry run %v: got %+v and %v, want %d kept", dry, rep, err, test.want)
				}
			}
			if tags, _, _ := b.Tags(t.Context(), "signatures", "", 10); len(tags) != test.want {
				t.Errorf("left %v, want %d", tags, test.want)
			}
		})
	}
}

// TestRetainAttachedToAttached has an SBOM with a signature. Both go with the image in one run.
func TestRetainAttachedToAttached(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	m, _, _, _ := b.PushImage("a", 1, "old")
	b.Clock.Add(time.Minute)
	sbom, _, _, _ := b.PushImage("a", 2, "sha256-"+m.Digest.Encoded()+".sbom")
	b.Clock.Add(time.Minute)
	b.PushImage("a", 3, "sha256-"+sbom.Digest.Encoded()+".sig")
	b.Clock.Add(day)
	kept, _, _, _ := b.PushImage("a", 4, "new")
	b.PushImage("a", 5, "sha256-"+kept.Digest.Encoded()+".sig")
	b.Clock.Add(day)
	rules := []retention.Rule{{Repositories: only("a"), KeepNewest: 1}}
	for _, dry := range []bool{true, false} {
		if rep, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{DryRun: dry}); err != nil || rep.Removed != 3 || rep.Kept != 2 {
			t.Errorf("dry run %v: got %+v and %v, want 3 tags removed", dry, rep, err)
		}
	}
}

// TestRetainWhileAsked asks for a manifest while its tag is being removed. A client that learns
// that it exists must find it afterwards.
func TestRetainWhileAsked(t *testing.T) {
	b := registrytest.New(t, nil, registry.Options{Grace: time.Hour})
	rules := []retention.Rule{{Repositories: only("a"), KeepTags: []*regexp.Regexp{regexp.MustCompile("^kept$")}}}
	removed := 0
	for i := range 100 {
		m, _, _, _ := b.PushImage("a", uint64(i), "going")
		b.Clock.Add(2 * time.Hour)
		told := make(chan bool)
		go func() {
			_, err := b.ResolveManifest(t.Context(), "a", string(m.Digest))
			if err != nil && !oci.HasCode(err, oci.CodeManifestUnknown) {
				t.Error(err)
			}
			told <- err == nil
		}()
		rep, err := retention.Apply(t.Context(), b.Registry, rules, retention.Options{})
		if err != nil {
			t.Fatal(err)
		}
		removed += rep.Removed
		if <-told && rep.Removed > 0 {
			t.Fatalf("round %d: a client was told of a manifest that was then removed", i)
		}
	}
	t.Logf("removed %d", removed)
}

// only returns a function that matches only the named repository.
func only(name string) func(string) bool { return func(repo string) bool { return repo == name } }
