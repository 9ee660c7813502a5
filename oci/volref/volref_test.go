package volref_test

import (
	"errors"
	"strings"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
)

func digest(s string) oci.Digest { return oci.SHA256([]byte(s)) }

func TestVolumeName(t *testing.T) {
	a, b := digest("a"), digest("b")
	seen := map[string]bool{}
	for _, fs := range []string{volref.Ext4, volref.EROFS} {
		for _, layers := range [][]oci.Digest{{a}, {b}, {a, b}, {b, a}, {a, a}, {a, b, a}} {
			name := volref.VolumeName(fs, layers)
			if err := volref.CheckName(name); err != nil || volref.IsClone(name) || seen[name] {
				t.Errorf("%s of %v: %q, %v", fs, layers, name, err)
			}
			if name != volref.VolumeName(fs, layers) {
				t.Error("the name changes")
			}
			seen[name] = true
		}
	}
	// Existing volumes have these names. Other names would cause all volumes to be made
	// again.
	if got, want := volref.VolumeName(volref.Ext4, []oci.Digest{a}), "ext4-26d33f885d482a048aa09210d341bc0a0a828bba"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func record() *volref.Record {
	return &volref.Record{
		Version: 1, Manifest: digest("m"), FS: volref.Ext4, Place: volref.Place{Driver: "rbd", Cluster: "c-1", Pool: "p", Namespace: "n"},
		Layers: []volref.RecordLayer{{digest("a"), "ext4-a", 8192, 4096}, {digest("b"), "ext4-b", 8192, 0}},
	}
}

func TestRecordCheck(t *testing.T) {
	if err := record().Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if got := record().Volume(); got != "ext4-b" {
		t.Errorf("its volume is %q", got)
	}
	erofs := record()
	erofs.FS, erofs.Layers[0] = volref.EROFS, volref.RecordLayer{Digest: digest("a")}
	erofs.Place = volref.Place{Driver: "file", Cluster: "c"}
	if err := erofs.Check(); err != nil {
		t.Errorf("a good one of EROFS: %v", err)
	}
	for name, change := range map[string]func(r *volref.Record){
		"-version":        func(r *volref.Record) { r.Version = 2 },
		"-feature":        func(r *volref.Record) { r.Features = []string{"x"} },
		"-file system":    func(r *volref.Record) { r.FS = "xfs" },
		"-driver":         func(r *volref.Record) { r.Place.Driver = "nfs" },
		"manifest":        func(r *volref.Record) { r.Manifest = "sha256:x" },
		"no pool":         func(r *volref.Record) { r.Place.Pool = "" },
		"pool of files":   func(r *volref.Record) { r.Place.Driver = "file" },
		"no cluster":      func(r *volref.Record) { r.Place.Cluster = "" },
		"namespace":       func(r *volref.Record) { r.Place.Namespace = "a b" },
		"option":          func(r *volref.Record) { r.Place.Pool = "p\nkey = x" },
		"long":            func(r *volref.Record) { r.Place.Pool = strings.Repeat("p", 201) },
		"no layers":       func(r *volref.Record) { r.Layers = nil },
		"many layers":     func(r *volref.Record) { r.Layers = make([]volref.RecordLayer, 1001) },
		"digest":          func(r *volref.Record) { r.Layers[0].Digest = "" },
		"no volume":       func(r *volref.Record) { r.Layers[1].Volume = "" },
		"path":            func(r *volref.Record) { r.Layers[1].Volume = "../x" },
		"clone":           func(r *volref.Record) { r.Layers[1].Volume = "c-x" },
		"size":            func(r *volref.Record) { r.Layers[1].Size = 8191 },
		"no size":         func(r *volref.Record) { r.Layers[1].Size = 0 },
		"large":           func(r *volref.Record) { r.Layers[1].Size = 1 << 60 },
		"shrinks":         func(r *volref.Record) { r.Layers[1].Size = 4096 },
		"used":            func(r *volref.Record) { r.Layers[1].Used = -1 },
		"much used":       func(r *volref.Record) { r.Layers[1].Used = 1 << 40 },
		"volumes beneath": func(r *volref.Record) { r.FS = volref.EROFS },
	} {
		r := record()
		change(r)
		err := r.Check()
		var unsupported *volref.UnsupportedError
		if err == nil || errors.As(err, &unsupported) != strings.HasPrefix(name, "-") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
