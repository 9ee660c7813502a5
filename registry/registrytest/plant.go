package registrytest

import (
	"slices"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
)

// Overwrite puts an object into the store as if it had been there for a long time.
func (b *Bed) Overwrite(key string, data []byte) {
	b.T.Helper()
	if err := b.Store.Put(b.T.Context(), key, data, false); err != nil {
		b.T.Fatal(err)
	}
	b.Clock.Add(time.Second)
}

// Check checks the registry, and fails the test if the check cannot run.
func (b *Bed) Check(o check.Options) check.Report {
	b.T.Helper()
	rep, err := check.Run(b.T.Context(), b.Registry, o)
	if err != nil {
		b.T.Fatalf("fsck %+v: %v", o, err)
	}
	return rep
}

// Kinds summarises a report as "kind" or "kind repaired", sorted.
func Kinds(rep check.Report) []string {
	out := []string{}
	for _, p := range rep.Problems {
		s := string(p.Kind)
		if p.Repaired {
			s += " repaired"
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// Planted is what a test of fsck may damage: two images in two repositories that share
// their large layer.
type Planted struct {
	*Bed
	A, B                 oci.Descriptor // manifests
	Config, Small, Large oci.Descriptor
}

// Plant pushes the images.
func Plant(t testing.TB) *Planted {
	p := &Planted{Bed: New(t, nil, registry.Options{Grace: time.Hour})}
	p.A, p.Config, p.Small, p.Large = p.PushImage("a", 1, "v1")
	if _, err := p.MountBlob(t.Context(), "b", "a", p.Large.Digest); err != nil {
		t.Fatal(err)
	}
	config := p.PushBytes("b", []byte(`{"of":"b"}`))
	child := p.PushManifest("b", ImageOf(config, p.Large))
	p.B = p.PushManifest("b", IndexOf(child), "v2")
	p.Clock.Add(time.Minute)
	return p
}

// Quote returns a digest as SQL writes it.
func Quote(d oci.Digest) string { return "'" + string(d) + "'" }

// Delete removes an object from the store.
func (p *Planted) Delete(key string) {
	p.T.Helper()
	if err := p.Store.Delete(p.T.Context(), key); err != nil {
		p.T.Fatal(err)
	}
}
