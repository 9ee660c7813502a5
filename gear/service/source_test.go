package service_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
)

// TestContents checks that Fetch delivers all files of a layer's index, also large and
// empty ones.
func TestContents(t *testing.T) {
	b := newBed(t, setup{})
	large := bytes.Repeat([]byte("0123456789abcde\n"), (gear.LargeFile+5<<20)/16)
	_, d := b.push(ours, tarOf(file{"small", []byte("one")}, file{"large", large}, file{"empty", nil}, file{"again", []byte("one")}))
	b.wait(d)
	x, embedded, err := b.svc.StoredIndex(t.Context(), ours, d)
	if err != nil || embedded {
		t.Fatalf("StoredIndex: %v, %v", embedded, err)
	}
	files := append(x.Files, gear.Empty(), x.Files[0])
	had := make([]bool, len(files))
	err = b.svc.Contents().Fetch(t.Context(), files, func(i int, r io.Reader) error {
		body, err := io.ReadAll(r)
		if err == nil && (had[i] || sha256.Sum256(body) != files[i].Name) {
			t.Errorf("file %d: got %d bytes of another content, or it came again", i, len(body))
		}
		had[i] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range had {
		if !had[i] {
			t.Errorf("file %d did not come", i)
		}
	}
	enough := errors.New("enough")
	if err := b.svc.Contents().Fetch(t.Context(), files, func(int, io.Reader) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a fetch that is given up: %v", err)
	}
	none := []gear.File{{Name: gear.Name{1}, Size: 5}}
	if err := b.svc.Contents().Fetch(t.Context(), none, func(int, io.Reader) error { return nil }); !errors.Is(err, filestore.ErrLost) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestStoredIndexQueues checks that asking for the index of a layer queues it for
// conversion, whatever the mode.
func TestStoredIndexQueues(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Off }}})
	_, d := b.push(ours, tarOf(file{"a", []byte("first")}))
	b.eventually("the layer is converted", func() bool {
		_, _, err := b.svc.StoredIndex(t.Context(), ours, d)
		var p *gear.PendingError
		if err != nil && (!errors.As(err, &p) || p.RetryAfter <= 0) {
			t.Fatal(err)
		}
		return err == nil
	})
	var p *gear.PendingError
	if _, _, err := b.svc.StoredIndex(t.Context(), ours, oci.SHA256([]byte("none"))); !errors.As(err, &p) || p.RetryAfter <= 0 || p.Reason == "" {
		t.Errorf("a layer that is not here: %v", err)
	}
	_, bad := b.push(ours, bytes.Repeat([]byte("no tar "), 999))
	b.eventually("the conversion fails", func() bool {
		_, _, err := b.svc.StoredIndex(t.Context(), ours, bad)
		return errors.As(err, &p) && p.RetryAfter == 0 && p.Reason != ""
	})
}
