package serve_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/storage"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

// gzLayer returns a layer of one file of random hexadecimal digits, compressed.
func gzLayer(t testing.TB, name string) string {
	t.Helper()
	sum := sha256.Sum256([]byte(name))
	var text strings.Builder
	for text.Len() < 200_000 {
		sum = sha256.Sum256(sum[:])
		text.WriteString(hex.EncodeToString(sum[:]))
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(tarOf(t, name, text.String())))
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// dropSoon makes the server drop all layers that were not pulled a moment ago.
func dropSoon(c *config.Config) {
	r := &c.Storage.Rebuild
	r.ColdAfter, r.Again, r.Interval, r.LeastRate, r.Share = time.Millisecond, time.Millisecond, 50*time.Millisecond, 0, 100
}

// hasBlob reports whether a data root has the object of a blob.
func hasBlob(t testing.TB, root, layer string) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(root, storage.BlobKey(oci.SHA256([]byte(layer)))))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// TestDroppedLayers checks over HTTP that a server drops what is configured, that clients notice nothing,
// with and without a cache, that the check and a backup include dropped layers, and that a server
// without recipes in its configuration serves them and brings them back.
func TestDroppedLayers(t *testing.T) {
	t.Parallel()
	for _, cache := range []string{"", "storage: {blob_cache: {ram: 64MiB}}"} {
		t.Run(cache, func(t *testing.T) {
			t.Parallel()
			s := start(t, setup{yaml: cache, change: dropSoon})
			layers := []string{gzLayer(t, "a"), gzLayer(t, "b")}
			for i, l := range layers {
				s.pushLayer("team/app", "v"+string(rune('1'+i)), l)
			}
			a, _ := openAdmin(t, s.cfg)
			for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
				if _, err := a.Settle(t.Context(), admin.SettleArgs{All: true}); err != nil {
					t.Fatal(err)
				}
				st, err := a.Recipes(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if st.Layers == int64(len(layers)) && !hasBlob(t, s.root, layers[0]) && !hasBlob(t, s.root, layers[1]) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("the layers were not dropped: %+v; log:\n%s", st, s.log)
				}
			}
			s.wantLayers("dropped", layers)
			if rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{}, nil); err != nil || len(rep.Problems) > 0 {
				t.Errorf("fsck: %+v, %v", rep.Problems, err)
			}
			saved := filepath.Join(t.TempDir(), "backup")
			if rep, err := a.Backup(t.Context(), dataroot.BackupArgs{Dir: saved}, nil); err != nil || rep.DamagedTotal > 0 || !hasBlob(t, saved, layers[0]) {
				t.Errorf("backup: %+v, %v", rep, err)
			}
			if _, err := a.Rehydrate(t.Context(), dataroot.RehydrateArgs{All: true}, nil); err == nil {
				t.Error("all layers were brought back although they would be dropped again")
			}
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
			s = start(t, setup{yaml: cache, root: s.root})
			s.wantLayers("without recipes in the configuration", layers)
			a, _ = openAdmin(t, s.cfg)
			if rep, err := a.Rehydrate(t.Context(), dataroot.RehydrateArgs{Images: []string{"team/app:v1"}}, nil); err != nil || rep.Layers != 1 || !hasBlob(t, s.root, layers[0]) {
				t.Errorf("rehydrate an image: %+v, %v", rep, err)
			}
			if rep, err := a.Rehydrate(t.Context(), dataroot.RehydrateArgs{All: true}, nil); err != nil || rep.Layers != 1 || !hasBlob(t, s.root, layers[1]) {
				t.Errorf("rehydrate all: %+v, %v", rep, err)
			}
			s.wantLayers("brought back", layers)
		})
	}
}

// wantLayers checks what a client gets by HEAD, GET, and GET of a range.
func (s *instance) wantLayers(what string, layers []string) {
	s.t.Helper()
	for _, l := range layers {
		at := "/v2/team/app/blobs/" + string(oci.SHA256([]byte(l)))
		s.want(200, "HEAD", at, "")
		if got := s.want(200, "GET", at, "").body; got != l {
			s.t.Errorf("%s: got %d bytes, want the %d that were pushed", what, len(got), len(l))
		}
		if got := s.want(206, "GET", at, "", header("Range", "bytes=1000-2999")).body; got != l[1000:3000] {
			s.t.Errorf("%s: a range of %d bytes is not the one of the layer", what, len(got))
		}
	}
}

// TestFsckFromRecipe damages and removes the blob of a layer that also has a recipe, before
// it is dropped. A repair rebuilds it, and gives up nothing.
func TestFsckFromRecipe(t *testing.T) {
	t.Parallel()
	s := start(t, setup{change: func(c *config.Config) {
		dropSoon(c)
		c.Storage.Rebuild.Again = time.Hour
	}})
	layers := []string{gzLayer(t, "a")}
	s.pushLayer("team/app", "v1", layers[0])
	a, _ := openAdmin(t, s.cfg)
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if _, err := a.Settle(t.Context(), admin.SettleArgs{All: true}); err != nil {
			t.Fatal(err)
		}
		st, err := a.Recipes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.Waiting == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no recipe was made: %+v; log:\n%s", st, s.log)
		}
	}
	path := filepath.Join(s.root, storage.BlobKey(oci.SHA256([]byte(layers[0]))))
	for what, bad := range map[string]string{"damaged": strings.Repeat("x", len(layers[0])), "cut": layers[0][:100], "gone": ""} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if bad != "" {
			if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range []int{1, 0} {
			rep, err := a.Fsck(t.Context(), dataroot.FsckArgs{Repair: true}, nil)
			if err != nil || !rep.Clean() || len(rep.Problems) != want {
				t.Errorf("%s: fsck: %+v, %v; want %d problems, repaired", what, rep.Problems, err, want)
			}
		}
		s.wantLayers(what, layers)
	}
}
