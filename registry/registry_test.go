package registry_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/storage"
)

// TestPushAndPull pushes everything that can be pushed, in every size class, and reads it, also
// through a registry that has nothing in RAM.
func TestPushAndPull(t *testing.T) {
	b := newDiskBed(t)
	ctx := t.Context()
	m, _, _, large := b.PushImage("a/b", 1, "v1", "latest")
	empty := b.PushBytes("a/b", nil)
	middle := b.PushBytes("a/b", registrytest.Content(3, 20_000))
	full := registrytest.ImageOf(empty, middle, large)
	full.Subject = &m
	referrer := b.PushManifest("a/b", full)
	b.PushManifest("c", registrytest.IndexOf(), "empty")

	want := registrytest.Reachable(t, b)
	if len(want) != 11 {
		t.Errorf("%d things can be read, want 3 tags, 3 manifests and 5 blobs", len(want))
	}
	part, err := b.GetBlobRange(ctx, "a/b", large.Digest, 99_990, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := part.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), registrytest.Content(1+1<<32, 100_000)[99_990:]) {
		t.Errorf("the last 10 bytes: %x, %v", got.Bytes(), err)
	}
	part.Close()
	if _, err := registrytest.ReadBlob(ctx, b, "c", large.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("a blob of another repository: %v", err)
	}
	wrong := oci.SHA256([]byte("something else"))
	if _, err := b.PushBlob(ctx, "a/b", wrong, 20_000, bytes.NewReader(registrytest.Content(3, 20_000))); !oci.HasCode(err, oci.CodeDigestInvalid) {
		t.Errorf("a blob with a wrong digest: %v", err)
	}
	list, _, err := b.Referrers(ctx, "a/b", m.Digest, "", "", 10)
	if err != nil || len(list) != 1 || list[0].Digest != referrer.Digest {
		t.Errorf("referrers: %+v, %v", list, err)
	}

	// A second registry over the same root sees what is durable.
	again := openDiskBed(t, b.Root)
	if diff := cmp.Diff(want, registrytest.Reachable(t, again)); diff != "" {
		t.Errorf("by the second registry (-first +second):\n%s", diff)
	}
}

func TestCollectTakesWhatNobodyNeeds(t *testing.T) {
	b := newBed(t, nil, registry.Options{Grace: time.Hour})
	ctx := t.Context()
	b.Clock.Add(time.Hour)
	_, _, _, kept := b.PushImage("a", 1, "v1")
	m, _, _, large := b.PushImage("a", 2, "v2")
	loose := b.PushBytes("a", registrytest.Content(3, 20_000))
	if err := b.DeleteManifest(ctx, "a", m.Digest); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		wait time.Duration
		left string
	}{{30 * time.Minute, "kept large loose"}, {31 * time.Minute, "kept"}} {
		b.Clock.Add(step.wait)
		if _, err := b.Collect(ctx, registry.CollectOptions{}); err != nil {
			t.Fatal(err)
		}
		var left []string
		for name, d := range map[string]oci.Digest{"kept": kept.Digest, "large": large.Digest, "loose": loose.Digest} {
			if _, err := b.Store.Stat(ctx, storage.BlobKey(d)); err == nil {
				left = append(left, name)
			}
		}
		if len(left) != len(strings.Fields(step.left)) {
			t.Errorf("after %v: %v are left, want %s", step.wait, left, step.left)
		}
	}
	if rep := b.Check(check.Options{}); !rep.Clean() {
		t.Errorf("after the collection: %+v", rep.Problems)
	}
}
