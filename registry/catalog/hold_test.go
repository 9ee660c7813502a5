package catalog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
)

// TestHold checks that a held lease outlives its time, excludes others until it is released, and
// ends if somebody else gets it nevertheless.
func TestHold(t *testing.T) {
	c := openTest(t, nil)
	const d = 200 * time.Millisecond
	held, release, err := c.DB.Hold(t.Context(), "job", "a", d)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(3 * d); time.Now().Before(end); {
		if _, _, err := c.DB.Hold(t.Context(), "job", "b", d); !errors.Is(err, engine.ErrLeased) {
			t.Fatalf("a second holder: got %v, want engine.ErrLeased", err)
		}
	}
	if held.Err() != nil {
		t.Fatalf("the lease ended: %v", context.Cause(held))
	}
	release()
	if held.Err() == nil {
		t.Error("the lease was released and goes on")
	}
	held, release, err = c.DB.Hold(t.Context(), "job", "b", d)
	if err != nil {
		t.Fatalf("after the first was released: %v", err)
	}
	defer release()
	if err := c.DB.Unlease(t.Context(), "job", "b"); err != nil { // as if it had expired
		t.Fatal(err)
	}
	if ok, err := c.DB.Lease(t.Context(), "job", "c", time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	<-held.Done()
	if cause := context.Cause(held); !errors.Is(cause, engine.ErrLeaseLost) {
		t.Errorf("the lease ended with %v, want engine.ErrLeaseLost", cause)
	}
}

// TestDue checks that Due reports what is shown with the time at which the collector looks at it.
func TestDue(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := openTest(t, &catalog.Options{Clock: func() time.Time { return now }, Grace: time.Hour})
	ctx := t.Context()
	blob, manifest := []byte("a layer"), []byte("a manifest")
	d, m := oci.SHA256(blob), oci.SHA256(manifest)
	want := func(of oci.Digest, isManifest, here bool, due time.Time) {
		t.Helper()
		gotHere, gotDue, err := c.Garbage.Due(ctx, "a", of, isManifest)
		if err != nil || gotHere != here || !gotDue.Equal(due) {
			t.Errorf("got %v, due %v, %v, want %v, due %v", gotHere, gotDue, err, here, due)
		}
	}
	want(d, false, false, time.Time{})
	if err := putBlob(ctx, c, "a", catalog.Blob{Digest: d, Size: int64(len(blob)), Content: blob}, ""); err != nil {
		t.Fatal(err)
	}
	want(d, false, true, now.Add(time.Hour))
	want(d, true, false, time.Time{})
	if err := c.Garbage.Postpone(ctx, []catalog.Postponed{{Repo: "a", Digest: d, Until: now.Add(2 * time.Hour)}}); err != nil {
		t.Fatal(err)
	}
	want(d, false, true, now.Add(2*time.Hour))
	put := catalog.NewManifest{Manifest: catalog.Manifest{Digest: m, MediaType: oci.MediaTypeOCIManifest, Content: manifest}, Blobs: []oci.Digest{d}, Tags: []string{"t"}}
	if _, err := c.PutManifest(ctx, "a", put); err != nil {
		t.Fatal(err)
	}
	want(m, true, true, time.Time{}) // a tag has it
	if err := c.DeleteTag(ctx, "a", "t", nil); err != nil {
		t.Fatal(err)
	}
	want(m, true, true, now.Add(time.Hour))
	want(m, false, false, time.Time{})
}
