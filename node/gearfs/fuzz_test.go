package gearfs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/node/gearfs"
)

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
