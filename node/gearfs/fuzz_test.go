package gearfs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs"
)

func FuzzProfile(f *testing.F) {
	f.Add(gearfs.EncodeProfile(gearfs.Profile{}))
	two := gearfs.Profile{Files: predict.Files([]gear.Name{{1}, {2}}, "so"), Donor: "sha256:d"}
	f.Add(gearfs.EncodeProfile(two))
	f.Add(gearfs.ProfileV1([]gear.Name{{1}, {2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := gearfs.ParseProfile(b)
		if err != nil {
			return
		}
		again, err := gearfs.ParseProfile(gearfs.EncodeProfile(p))
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Errorf("%x becomes another profile: %v\n%s", b, err, diff)
		}
	})
}

func FuzzTable(f *testing.F) {
	b, err := gearfs.EncodeTable([]gear.File{{Name: gear.Name{2}, Size: 7}, {Name: gear.Name{1}, Size: 5 << 20, Chunks: make([]gear.Name, 5)}, gear.Empty()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		if files, size, err := gearfs.ParseTable(b); err == nil && (files*48 > len(b) || size < int64(files)) {
			t.Errorf("%d bytes are read as %d files of %d bytes", len(b), files, size)
		}
	})
}

func FuzzRecord(f *testing.F) {
	hex := strings.Repeat("ab", 32)
	f.Add([]byte(`{"version":1,"chain":"sha256:1","index":"` + hex + `","sources":[{"registry":"r","repository":"p"}],"hits":{"opened":3,"covered":2}}`))
	f.Add([]byte(`{"version":1,"chain":"../x","index":"` + hex + `"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		chain, _, err := gearfs.ParseRecord(b)
		if err == nil && (chain == "" || filepath.Base(chain) != chain || strings.HasPrefix(chain, ".")) {
			t.Errorf("chain %q", chain)
		}
	})
}
