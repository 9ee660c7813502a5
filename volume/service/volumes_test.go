package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	volumeregistry "example.org/slipway/volume/service"
)

const repo = "team/app"

func base(t *testing.T) []byte { return layer(t, "a", strings.Repeat("first ", 9000), "b", "small") }

// TestPushToRemoval checks that a pushed image is built, that its record is served and stored
// beside the image, and that everything is removed with the image.
func TestPushToRemoval(t *testing.T) {
	b := newBed(t, newPlace(t), setup{opts: volumeregistry.Options{FS: []string{volref.Ext4, volref.EROFS}}})
	one := b.push(repo, "v1", base(t))
	two := b.push(repo, "v2", base(t), layer(t, "c", strings.Repeat("second ", 9000)))
	recs := b.built(repo, two)
	if len(recs) != 2 || len(recs[0].Layers) != 2 {
		t.Fatalf("got %+v, want records of two file systems", recs)
	}
	var ext4 volref.Record
	for _, r := range recs {
		if r.FS == volref.Ext4 {
			ext4 = r
		}
	}
	below := b.built(repo, one)
	if !slices.ContainsFunc(below, func(r volref.Record) bool { return r.FS == volref.Ext4 && r.Volume() == ext4.Layers[0].Volume }) {
		t.Errorf("the images do not share the volume of their common layer: %+v and %+v", below, ext4)
	}
	if got := b.volumes(); len(got) != 4 {
		t.Errorf("volumes: got %q, want two of ext4 and two of EROFS", got)
	}

	// The record beside the image is the one that is served.
	refs := b.referrers(repo, two)
	if len(refs) != 2 {
		t.Fatalf("referrers: got %+v, want two", refs)
	}
	for _, ref := range refs {
		m, err := b.reg.GetManifest(t.Context(), repo, string(ref.Digest))
		if err != nil {
			t.Fatal(err)
		}
		var doc struct{ Layers []oci.Descriptor }
		if err := json.Unmarshal(m.Bytes, &doc); err != nil || len(doc.Layers) != 1 {
			t.Fatalf("%s: %v", m.Bytes, err)
		}
		c, err := b.reg.GetBlob(t.Context(), repo, doc.Layers[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(c)
		if err = errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(b.image(repo, two).Records, func(r json.RawMessage) bool { return bytes.Equal(r, body) }) {
			t.Errorf("the record beside the image is not served: %s", body)
		}
	}

	// The volumes of the upper image are removed while a node has the lower one open.
	s, err := file.Open(b.p.volumes, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.Open(t.Context(), ext4.Layers[0].Volume)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []oci.Digest{one, two} {
		if err := b.reg.DeleteManifest(t.Context(), repo, d); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(5 * time.Millisecond) // the grace period
	collect(t, b, true)
	if got := b.volumes(); len(got) != 1 || got[0] != ext4.Layers[0].Volume {
		t.Errorf("volumes while one is open: got %q", got)
	}
	if refs := b.referrers(repo, two); len(refs) != 0 {
		t.Errorf("records stay beside an image that is gone: %+v", refs)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	collect(t, b, true)
	if got := b.volumes(); len(got) != 0 {
		t.Errorf("volumes at last: got %q", got)
	}
	if st, err := b.svc.Status(t.Context()); err != nil || st.Built != 0 || st.Volumes != 0 || st.Failed != 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
}

func collect(t *testing.T, b *bed, now bool) volumeregistry.Collected {
	t.Helper()
	c, err := b.svc.Collect(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPolicy checks that only images that are selected or requested are built, and that an image
// which cannot be a volume says why.
func TestPolicy(t *testing.T) {
	b := newBed(t, newPlace(t), setup{opts: volumeregistry.Options{Build: func(r string) bool { return strings.HasPrefix(r, "team/") }}})
	off := b.push("scratch/app", "v1", base(t))
	on := b.push(repo, "v1", base(t))
	b.built(repo, on)
	if st := b.image("scratch/app", off); st.State != "" || len(st.Records) != 0 {
		t.Errorf("an image that is not to be built: %+v", st)
	}
	if err := b.svc.Queue(t.Context(), "scratch/app", off, volref.EROFS); err != nil {
		t.Fatal(err)
	}
	if recs := b.built("scratch/app", off); len(recs) != 1 || recs[0].FS != volref.EROFS {
		t.Errorf("an image that was asked for: %+v", recs)
	}
	if err := b.svc.Queue(t.Context(), "scratch/app", off, "xfs"); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("another file system: %v", err)
	}
	if err := b.svc.Queue(t.Context(), "scratch/none", on, ""); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("a repository that does not show the image: %v", err)
	}
	if _, err := b.svc.Image(t.Context(), "scratch/none", on); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("a repository that does not show the image: %v", err)
	}
	if refs := b.referrers(repo, on); len(refs) != 1 {
		t.Fatalf("referrers: %+v", refs)
	} else if err := b.svc.Queue(t.Context(), repo, refs[0].Digest, ""); !oci.HasCode(err, oci.CodeUnsupported) {
		t.Errorf("an artifact: %v", err)
	}
	list, err := b.svc.List(t.Context(), "", 0, 10)
	if err != nil || len(list) != 2 || list[0].Repo != repo || list[0].Volume == "" || list[0].Size == 0 || list[1].FS != volref.EROFS {
		t.Errorf("list: %+v, %v", list, err)
	}
	if c, err := b.svc.Credential(t.Context(), repo, on, true, ""); err != nil || c != (volref.Credential{}) {
		t.Errorf("credential: %+v, %v", c, err)
	}
	if _, err := b.svc.Credential(t.Context(), "scratch/none", on, false, ""); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("credential by way of another repository: %v", err)
	}
}

// TestUnsupported checks that an image which no volume can hold fails once with the reason, and is
// not tried again by itself.
func TestUnsupported(t *testing.T) {
	b := newBed(t, newPlace(t), setup{})
	d := b.push(repo, "bad", bytes.Repeat([]byte("this is no tar. "), 4000))
	poll(t, "the build fails", func() bool { return b.image(repo, d).State == volumeregistry.StateFailed })
	st, err := b.svc.Status(t.Context())
	if err != nil || st.Failed != 1 || len(st.Failures) != 1 || st.Failures[0].Reason == "" || !st.Failures[0].Retry.IsZero() {
		t.Errorf("status: %+v, %v", st, err)
	}
	if _, err := b.svc.Credential(t.Context(), repo, d, false, ""); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("credential for an image without volumes: %v", err)
	}
}

// TestDrop checks that dropped volumes are removed and come back when they are requested.
func TestDrop(t *testing.T) {
	b := newBed(t, newPlace(t), setup{})
	d := b.push(repo, "v1", base(t))
	b.built(repo, d)
	if err := b.svc.Drop(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	if st := b.image(repo, d); len(st.Records) != 0 {
		t.Errorf("records of what was given up: %+v", st)
	}
	poll(t, "the volumes go", func() bool { collect(t, b, true); return len(b.volumes()) == 0 })
	if refs := b.referrers(repo, d); len(refs) != 0 {
		t.Errorf("referrers: %+v", refs)
	}
	if err := b.svc.Drop(t.Context(), repo, d, ""); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("to give up what is not there: %v", err)
	}
	if err := b.svc.Queue(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	b.built(repo, d)
	if refs := b.referrers(repo, d); len(refs) != 1 {
		t.Errorf("referrers: %+v", refs)
	}
}

// TestLostVolume checks that a volume lost in the storage is made again on request.
func TestLostVolume(t *testing.T) {
	b := newBed(t, newPlace(t), setup{})
	d := b.push(repo, "v1", base(t))
	rec := b.built(repo, d)[0]
	s, err := file.Open(b.p.volumes, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Remove(t.Context(), rec.Volume()); err != nil {
		t.Fatal(err)
	}
	if err := b.svc.Queue(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	poll(t, "the volume is there again", func() bool { return slices.Contains(b.volumes(), rec.Volume()) && b.image(repo, d).State == "" })
}

// TestOtherStorage checks that records of another place are not served and say why. Records of
// storage that is away are not served either.
func TestOtherStorage(t *testing.T) {
	p := newPlace(t)
	b := newBed(t, p, setup{})
	d := b.push(repo, "v1", base(t))
	b.built(repo, d)
	b.close()
	p.volumes = filepath.Join(t.TempDir(), "other")
	if err := os.Mkdir(p.volumes, 0o700); err != nil {
		t.Fatal(err)
	}
	b = newBed(t, p, setup{})
	if st := b.image(repo, d); len(st.Records) != 0 || st.State != volumeregistry.StateFailed || !strings.Contains(st.Reason, "other storage") {
		t.Errorf("records of other storage: %+v", st)
	}
	if st, err := b.svc.Status(t.Context()); err != nil || st.Elsewhere != 1 || st.Volumes != 0 {
		t.Errorf("status: %+v, %v", st, err)
	}
	if err := b.svc.Queue(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	b.built(repo, d)
	if refs := b.referrers(repo, d); len(refs) != 1 {
		t.Errorf("referrers: %+v, want that of the new place only", refs)
	}
	b.close()

	away := errors.New("nobody is at home")
	b = newBed(t, p, setup{open: func(context.Context) (block.Store, error) { return nil, away }})
	if st := b.image(repo, d); len(st.Records) != 0 || !strings.Contains(st.Reason, "does not answer") {
		t.Errorf("records of storage that is away: %+v", st)
	}
	if st, err := b.svc.Status(t.Context()); err != nil || !strings.Contains(st.Away, away.Error()) || st.Built != 1 {
		t.Errorf("status: %+v, %v", st, err)
	}
	two := b.push(repo, "v2", base(t), layer(t, "c", "c"))
	poll(t, "the build waits for the storage", func() bool { return strings.Contains(b.image(repo, two).Reason, "tried again") })
}
