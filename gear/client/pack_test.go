package client_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// TestPack requests the files of profiles. Each must come once and in order, without large files,
// files that the repository or the image does not have, and what is beyond 64 MiB.
func TestPack(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var members []member
	for i := range 40 {
		members = append(members, file(fmt.Sprintf("file%02d", i), noise(uint64(i), 1000+i*3000)))
	}
	members = append(members, file("large", noise(100, 5<<20)))
	manifest := b.pushImage("r/app", "v1", "linux/amd64", [][]byte{layer(t, members...)}).Digest
	x, err := b.Index(t.Context(), b.image("r/app", "v1"))
	must(t, err)
	var want, profile []gear.Name
	for i := range x.Files {
		if i%5 == 0 && x.Files[i].Size < gear.LargeFile {
			continue
		}
		profile = append(profile, x.Files[i].Name)
		if x.Files[i].Size < gear.LargeFile {
			want = append(want, x.Files[i].Name)
		}
	}
	other := noise(200, 3000)
	b.pushImage("r/app", "v2", "linux/amd64", [][]byte{layer(t, file("other", other))})
	must(t, b.reg.GearReportProfile(t.Context(), "r/app", manifest, append(profile, gear.Name{1}, sha256.Sum256([]byte(other))), true))
	take := func(repo string, manifest oci.Digest, stop int) (got []gear.Name, err error) {
		err = b.Pack(t.Context(), repo, manifest, func(f gear.File, r io.Reader) error {
			c, err := io.ReadAll(r)
			if got = append(got, f.Name); len(got) == stop {
				return errStop
			}
			if gear.Name(sha256.Sum256(c)) != f.Name || int64(len(c)) != f.Size {
				t.Errorf("file %x of %d bytes has other bytes", f.Name, f.Size)
			}
			return err
		})
		return got, err
	}
	if got, err := take("r/app", manifest, 0); err != nil || !slices.Equal(got, want) {
		t.Errorf("it brings %d files, %v; want %d", len(got), err, len(want))
	}
	if got, err := take("r/app", manifest, 3); !errors.Is(err, errStop) || len(got) != 3 {
		t.Errorf("stopped at the third, it brings %d files, %v", len(got), err)
	}
	if got, err := take("r/app", oci.SHA256([]byte("no image")), 0); !oci.HasCode(err, oci.CodeManifestUnknown) || len(got) != 0 {
		t.Errorf("without an image it brings %d files, %v", len(got), err)
	}
	// A profile may be larger than a node should wait for.
	members = nil
	for i := range 36 {
		members = append(members, file(fmt.Sprintf("wide%02d", i), strings.Repeat(string(rune('A'+i)), 2<<20)))
	}
	manifest = b.pushImage("r/wide", "v1", "linux/amd64", [][]byte{layer(t, members...)}).Digest
	x, err = b.Index(t.Context(), b.image("r/wide", "v1"))
	must(t, err)
	profile = nil
	for i := range x.Files {
		profile = append(profile, x.Files[i].Name)
	}
	must(t, b.reg.GearReportProfile(t.Context(), "r/wide", manifest, profile, true))
	if got, err := take("r/wide", manifest, 0); err != nil || !slices.Equal(got, profile[:32]) {
		t.Errorf("of 36 files of 2 MiB it brings %d, %v; want 32", len(got), err)
	}
	members, profile = nil, nil
	for i := range gear.PackFiles + 10 {
		content := fmt.Appendf(nil, "content %d", i)
		members = append(members, file(fmt.Sprintf("tiny%04d", i), string(content)))
		profile = append(profile, sha256.Sum256(content))
	}
	manifest = b.pushImage("r/many", "v1", "linux/amd64", [][]byte{layer(t, members...)}).Digest
	_, err = b.Index(t.Context(), b.image("r/many", "v1")) // the registry knows its files then
	must(t, err)
	must(t, b.reg.GearReportProfile(t.Context(), "r/many", manifest, profile, true))
	if got, err := take("r/many", manifest, 0); err != nil || !slices.Equal(got, profile[:gear.PackFiles]) {
		t.Errorf("of %d files it brings %d, %v; want %d", len(profile), len(got), err, gear.PackFiles)
	}
}

var errStop = errors.New("stop")
