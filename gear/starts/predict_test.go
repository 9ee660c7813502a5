package starts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

// predicted returns what is predicted of an image, by the contents of its files.
func (b *bed) predicted(repo string, m oci.Digest, files ...file) ([]string, oci.Digest) {
	b.t.Helper()
	p, err := b.book.Predict(b.t.Context(), repo, m)
	b.must(err)
	out := []string{}
	for _, f := range p.Files {
		i := slices.IndexFunc(files, func(o file) bool { return name(o.data) == f.Name })
		if i < 0 {
			b.t.Fatalf("%x is predicted and not of the image", f.Name)
		}
		out = append(out, f.From.String()+" "+files[i].name)
	}
	return out, p.Donor
}

// reports reports that a container of an image has opened files, and waits until that is
// learnt.
func (b *bed) reports(repo string, m oci.Digest, files ...file) {
	b.t.Helper()
	var names []gear.Name
	for _, f := range files {
		names = append(names, name(f.data))
	}
	b.must(b.book.ReportProfile(b.t.Context(), repo, m, names))
	b.eventually("the report is learnt from", func() bool {
		rows, err := gearfacts.NewLayers(b.cat.DB).Donors(b.t.Context(), repo)
		return err == nil && slices.ContainsFunc(rows, func(d gearfacts.Donor) bool { return d.Manifest == m })
	})
}

func want(t *testing.T, what string, got []string, wanted ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, wanted...), got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

// TestPredict starts the versions of a series one after the other. Each version inherits from
// the most similar one, even if that no longer exists, and its own reports replace the inferred
// profile.
func TestPredict(t *testing.T) {
	b := newBed(t, nil)
	v := func(n int) []file {
		return []file{{"app-1." + fmt.Sprint(n), fmt.Append(nil, "program ", n)}, {"lib/same", []byte("same")}, {"lib/unused", fmt.Append(nil, "unused ", n)},
			{"run.sh", []byte("#!/bin/sh\n")}}
	}
	one := b.pushImage(ours, []string{"/run.sh"}, v(1)...)
	got, donor := b.predicted(ours, one, v(1)...)
	want(t, "without a donor", got, "closure run.sh")
	if donor != "" {
		t.Errorf("donor %s", donor)
	}
	b.reports(ours, one, v(1)[0], v(1)[1])
	got, _ = b.predicted(ours, one, v(1)...)
	want(t, "with a report", got, "own app-1.1", "own lib/same")

	two := b.pushImage(ours, []string{"/run.sh"}, v(2)...)
	b.must(b.reg.DeleteManifest(t.Context(), ours, one))
	b.collect()
	if _, err := b.book.Predict(t.Context(), ours, one); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("of an image that is gone: %v", err)
	}
	got, donor = b.predicted(ours, two, v(2)...)
	want(t, "of the next version", got, "series app-1.2", "series lib/same")
	if donor != one {
		t.Errorf("donor %s, want %s", donor, one)
	}
	if own, err := b.book.Profile(t.Context(), ours, two); err != nil || len(own) > 0 {
		t.Errorf("what is inferred counts as a profile of %d files (%v)", len(own), err)
	}
	// The first report of what was really opened replaces it.
	b.reports(ours, two, v(2)[1], v(2)[3])
	got, _ = b.predicted(ours, two, v(2)...)
	want(t, "with a report of its own", got, "own lib/same", "own run.sh")

	// Nothing of a repository is inherited in another one.
	foreign := b.pushImage(theirs, nil, v(2)...)
	if got, donor := b.predicted(theirs, foreign, v(2)...); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "series") }) || donor != "" {
		t.Errorf("a foreign repository inherits %v from %s", got, donor)
	}
	// A damaged donor counts as none.
	three := b.pushImage(ours, []string{"/run.sh"}, v(3)...)
	for _, m := range []oci.Digest{one, two} {
		b.must(gearfacts.NewLayers(b.cat.DB).PutDonor(t.Context(), gearfacts.Donor{Repo: ours, Manifest: m, Data: []byte("nonsense")}, "x", 8))
	}
	got, _ = b.predicted(ours, three, v(3)...)
	want(t, "with damaged donors", got, "closure run.sh")
}

// TestPredictInPart has starts that are seen in part only: what was missing is added to what is
// inferred, and the next version inherits both.
func TestPredictInPart(t *testing.T) {
	b := newBed(t, nil)
	v := func(n int) []file {
		return []file{{"app-1." + fmt.Sprint(n), fmt.Append(nil, "program ", n)}, {"lib/same", []byte("same")}, {"run.sh", []byte("#!/bin/sh\n")}}
	}
	seen := func(m oci.Digest, f file) {
		b.must(b.book.ReportSeen(t.Context(), ours, m, []gear.Name{name(f.data)}))
		b.eventually("the report is learnt from", func() bool {
			rows, err := gearfacts.NewLayers(b.cat.DB).Donors(t.Context(), ours)
			return err == nil && slices.ContainsFunc(rows, func(d gearfacts.Donor) bool { return d.Manifest == m })
		})
	}
	one := b.pushImage(ours, []string{"/run.sh"}, v(1)...)
	seen(one, v(1)[0])
	got, _ := b.predicted(ours, one, v(1)...)
	want(t, "with a report in part", got, "own app-1.1", "closure run.sh")
	two := b.pushImage(ours, []string{"/run.sh"}, v(2)...)
	got, _ = b.predicted(ours, two, v(2)...)
	want(t, "of the next version", got, "series app-1.2", "closure run.sh")
	seen(two, v(2)[1])
	three := b.pushImage(ours, []string{"/run.sh"}, v(3)...)
	b.must(b.reg.DeleteManifest(t.Context(), ours, one))
	got, _ = b.predicted(ours, three, v(3)...)
	slices.Sort(got)
	want(t, "of the one after that", got, "closure run.sh", "series app-1.3", "series lib/same")
}

// TestVotesOfOwners checks who may speak for an image: two repositories, of its own owner or of
// two owners. A repository that has the file and did not open it votes against it.
func TestVotesOfOwners(t *testing.T) {
	shared := file{"lib/shared", []byte("shared content")}
	rest := func(repo string) file { return file{"lib/rest", []byte("only in " + repo)} }
	for _, c := range []struct {
		opened, only []string
		want         bool
	}{
		{[]string{"b/1"}, nil, false},
		{[]string{"b/1", "b/2", "b/3"}, nil, false},
		{[]string{"b/1", "c/1"}, nil, true},
		{[]string{"a/1"}, nil, false},
		{[]string{"a/1", "a/2"}, nil, true},
		{[]string{"a/1", "b/1"}, nil, true},
		{[]string{"b/1", "c/1"}, []string{"d/1"}, false},
		{[]string{"b/1", "c/1", "d/1", "e/1"}, []string{"f/1"}, true},
	} {
		t.Run(strings.Join(c.opened, " ")+" not "+strings.Join(c.only, " "), func(t *testing.T) {
			b := newBed(t, func(repo string) string {
				owner, _, _ := strings.Cut(repo, "/")
				return owner
			})
			for _, repo := range c.opened {
				b.reports(repo, b.pushImage(repo, nil, shared, rest(repo)), shared)
			}
			for _, repo := range c.only {
				b.reports(repo, b.pushImage(repo, nil, shared, rest(repo)), rest(repo))
			}
			asks := "a/new"
			got, _ := b.predicted(asks, b.pushImage(asks, nil, shared, rest(asks)), shared, rest(asks))
			if c.want {
				want(t, "asks", got, "vote lib/shared")
			} else {
				want(t, "asks", got)
			}
		})
	}
}
