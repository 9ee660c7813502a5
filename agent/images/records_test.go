package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

const someDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// encoded returns the bytes of an index.
func encoded(t testing.TB, x *gear.Index) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := x.Encode(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func testRecord(parent, hex string) *chainRecord {
	return &chainRecord{Chain: "sha256:" + strings.Repeat(hex, 64), Parent: parent, Digest: someDigest, Ref: "r.example/app:v1",
		Sources: []gearfs.SourceRef{{Registry: "https://r.example", Repo: "app", Manifest: someDigest, Credential: "r.example/app"}}, Layers: []string{someDigest}}
}

func TestRecords(t *testing.T) {
	r := &records{dir: t.TempDir()}
	low := testRecord("", "a")
	top := testRecord(low.Chain, "b")
	for _, rec := range []*chainRecord{low, top} {
		if err := r.create(rec, encoded(t, &gear.Index{})); err != nil {
			t.Fatal(err)
		}
	}
	line, err := r.line(top.Chain)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*chainRecord{low, top}, line); diff != "" {
		t.Errorf("line of the top layer (-want +got):\n%s", diff)
	}
	if _, err := r.index(top); err != nil {
		t.Error(err)
	}
	dir, err := r.path(top.Chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.index(top); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("another index is read, error %v", err)
	}
	// The remains of a crash are removed, but not when records are listed: they could just be in
	// the making. Damaged records are reported and stay.
	for _, d := range []string{dir + ".new", filepath.Join(r.dir, "sha256-"+strings.Repeat("c", 64)), filepath.Join(r.dir, "sha256-"+strings.Repeat("d", 64))} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	damaged := filepath.Join(r.dir, "sha256-"+strings.Repeat("d", 64), "record.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad []string
	all, err := r.all(func(dir string, _ error) { bad = append(bad, dir) })
	if err != nil || len(all) != 2 || len(bad) != 1 {
		t.Errorf("%d records, damaged %q, error %v; want 2 and 1", len(all), bad, err)
	}
	if _, err := os.Stat(dir + ".new"); err != nil {
		t.Errorf("what may be being made is removed by who lists records: %v", err)
	}
	if err := r.clean(); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, error %v; want two records and the damaged one", entries, err)
	}
	for range 2 {
		if err := r.remove(top.Chain); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.load(top.Chain); !errors.Is(err, errNoRecord) {
		t.Errorf("a removed record is %v", err)
	}
	loop := testRecord("sha256:"+strings.Repeat("e", 64), "e")
	if err := r.create(loop, encoded(t, &gear.Index{})); err != nil {
		t.Fatal(err)
	}
	if _, err := r.line(loop.Chain); err == nil {
		t.Error("a chain that is its own parent has an end")
	}
	for _, chain := range []string{"", "sha256:", "sha256:../../etc/passwd0000000000000000000", "SHA256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("g", 64), "sha256:" + strings.Repeat("a", 300)} {
		if dir, err := r.path(chain); err == nil {
			t.Errorf("%.40q is taken for a chain, in %s", chain, dir)
		}
	}
}

func FuzzParseChainRecord(f *testing.F) {
	b, err := json.Marshal(testRecord("", "a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1,"image":"../x"}`))
	f.Add([]byte(`{"version":1,"image":".."}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseChainRecord(b)
		if err == nil && (strings.ContainsRune(rec.Image, '/') || rec.Image == ".." || rec.Image == "." || rec.Version != chainVersion) {
			t.Errorf("accepted: %+v", rec)
		}
	})
}
