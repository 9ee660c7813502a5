package client_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// TestPack takes the files of a profile from a pack: all of them, some, and others that it lacks. It
// brings what the image has, and says what it did not bring.
func TestPack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var members []member
	for i := range 40 {
		members = append(members, file(fmt.Sprintf("file%02d", i), noise(uint64(i), 1000+i*3000)))
	}
	members = append(members, file("large", noise(100, 5<<20)))
	manifest := b.pushImage("r/app", "v1", "linux/amd64", [][]byte{layer(t, members...)}).Digest
	img := b.image("r/app", "v1")
	x, err := b.Index(t.Context(), img)
	must(t, err)
	var profile []gear.Name
	for i := range x.Files {
		if i%5 > 0 {
			profile = append(profile, x.Files[i].Name)
		}
	}
	must(t, b.reg.GearReportProfile(t.Context(), "r/app", manifest, profile, true))
	take := func(ctx context.Context, files []gear.File, stop int) (brought int, left []int, err error) {
		p := b.Pack(t.Context(), "r/app", manifest)
		defer p.Close()
		left, err = p.Deliver(ctx, files, func(i int, r io.Reader) error {
			if brought++; brought == stop {
				return errStop
			}
			c, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			if got := gear.Name(sha256.Sum256(c)); got != files[i].Name {
				t.Errorf("file %d has other bytes", i)
			}
			return nil
		})
		return brought, left, err
	}
	if n, left, err := take(t.Context(), x.Files, 0); err != nil || n != len(profile) || len(left) != len(x.Files)-len(profile) {
		t.Errorf("it brought %d files, %d are left, %v; want %d", n, len(left), err, len(profile))
	}
	if n, left, err := take(t.Context(), x.Files[:8], 0); err != nil || n+len(left) != 8 || n == 0 {
		t.Errorf("of 8 files it brought %d, and %d are left, %v", n, len(left), err)
	}
	if n, left, err := take(t.Context(), x.Files, 3); !errors.Is(err, errStop) || n != 3 || len(left) != len(x.Files)-2 {
		t.Errorf("stopped at the third of %d, %d left: %v", n, len(left), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, left, err := take(ctx, x.Files, 0); !errors.Is(err, context.Canceled) || len(left) == 0 {
		t.Errorf("after the end of the context %d are left, %v", len(left), err)
	}
	// A node does not fetch a very large file as a whole, so the pack ends before it.
	one, huge, two := noise(200, 1000), strings.Repeat("huge", 10<<20), noise(201, 1000)
	manifest = b.pushImage("r/wide", "v1", "linux/amd64", [][]byte{layer(t, file("one", one), file("huge", huge), file("two", two))}).Digest
	x, err = b.Index(t.Context(), b.image("r/wide", "v1"))
	must(t, err)
	names := []gear.Name{sha256.Sum256([]byte(one)), sha256.Sum256([]byte(huge)), sha256.Sum256([]byte(two))}
	must(t, b.reg.GearReportProfile(t.Context(), "r/wide", manifest, names, true))
	wide := b.Pack(t.Context(), "r/wide", manifest)
	defer wide.Close()
	left, err := wide.Deliver(t.Context(), x.Files, func(i int, _ io.Reader) error {
		if x.Files[i].Name != names[0] {
			t.Errorf("it brings a file of %d bytes", x.Files[i].Size)
		}
		return nil
	})
	if err != nil || len(left) != 2 {
		t.Errorf("with a very large file %d of 3 are left, %v", len(left), err)
	}
	p := b.Pack(t.Context(), "r/app", oci.SHA256([]byte("no image")))
	defer p.Close()
	if left, err := p.Deliver(t.Context(), x.Files, nil); err != nil || len(left) != len(x.Files) {
		t.Errorf("without a profile %d of %d files are left, %v", len(left), len(x.Files), err)
	}
}

var errStop = errors.New("stop")
