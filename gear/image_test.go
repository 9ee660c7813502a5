package gear_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

func flatIndex(t testing.TB) *gear.Index {
	t.Helper()
	x, err := layerOf(t, "d bin", "f bin/sh 7", "h bin/ash bin/sh", "l sh bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestImageLayer(t *testing.T) {
	x := flatIndex(t)
	layer, err := gear.ImageLayer(x)
	if err != nil {
		t.Fatal(err)
	}
	again, err := gear.ImageLayer(x)
	if err != nil || !bytes.Equal(layer, again) {
		t.Errorf("the layer is another one the second time (%v)", err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(layer)
	z.Close()
	for name, data := range map[string][]byte{"plain": layer, "gzip": zipped.Bytes()} {
		got, err := gear.ReadImageLayer(t.Context(), bytes.NewReader(data), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(short(x), short(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := gear.ReadImageLayer(t.Context(), bytes.NewReader(layer), &gear.Limits{Entries: 2}); !errors.Is(err, gear.ErrTooLarge) {
		t.Errorf("beyond the limits: got %v", err)
	}
	notFlat, err := layerOf(t, "w a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gear.ImageLayer(notFlat); !errors.Is(err, gear.ErrInvalid) {
		t.Errorf("an index with whiteouts: got %v", err)
	}
}

func TestReadImageLayerRefuses(t *testing.T) {
	index, whiteout := encoded(t, flatIndex(t)), bytes.Buffer{}
	x, err := layerOf(t, "w a")
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Encode(&whiteout); err != nil {
		t.Fatal(err)
	}
	type member struct {
		name string
		data []byte
	}
	dir, readme := member{".slipway/", nil}, member{".slipway/README", []byte("x")}
	for name, test := range map[string]struct {
		members []member
		want    error
	}{
		"good":              {[]member{dir, readme, {".slipway/index", index}}, nil},
		"nothing":           {nil, gear.ErrNotGear},
		"another layer":     {[]member{{"bin/", nil}, {"bin/sh", index}}, gear.ErrNotGear},
		"no index":          {[]member{dir, readme}, gear.ErrNotGear},
		"no directory":      {[]member{readme, {".slipway/index", index}}, gear.ErrNotGear},
		"index a directory": {[]member{dir, readme, {".slipway/index/", nil}}, gear.ErrNotGear},
		"more":              {[]member{dir, readme, {".slipway/index", index}, {"x", nil}}, gear.ErrNotGear},
		"bad index":         {[]member{dir, readme, {".slipway/index", index[1:]}}, gear.ErrInvalid},
		"index of a layer":  {[]member{dir, readme, {".slipway/index", whiteout.Bytes()}}, gear.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			w := tar.NewWriter(&out)
			for _, m := range test.members {
				h := &tar.Header{Name: m.name, Typeflag: tar.TypeReg, Size: int64(len(m.data))}
				if m.name[len(m.name)-1] == '/' {
					h.Typeflag = tar.TypeDir
				}
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				w.Write(m.data)
			}
			w.Close()
			if _, err := gear.ReadImageLayer(t.Context(), &out, nil); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestImageConfig(t *testing.T) {
	original := `{
		"created": "2024-01-02T03:04:05Z", "author": "<me>", "architecture": "arm64", "variant": "v8", "os": "linux", "os.features": ["x"],
		"config": {"Env": ["A=b"], "Entrypoint": ["/bin/sh"], "Cmd": null, "Labels": {"a": "b"}, "Unknown": 12345678901234567890},
		"rootfs": {"type": "layers", "diff_ids": ["sha256:1", "sha256:2"]},
		"history": [{"created_by": "x"}, {"created_by": "y", "empty_layer": true}],
		"moby.unknown": {"deep": [1.0]}
	}`
	diffID, manifest := oci.SHA256([]byte("layer")), oci.SHA256([]byte("manifest"))
	got, err := gear.ImageConfig([]byte(original), manifest, diffID)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
		"created": "2024-01-02T03:04:05Z", "author": "<me>", "architecture": "arm64", "variant": "v8", "os": "linux", "os.features": ["x"],
		"config": {"Env": ["A=b"], "Entrypoint": ["/bin/sh"], "Cmd": null, "Unknown": 12345678901234567890,
			"Labels": {"a": "b", "dev.slipway.gear.version": "1", "dev.slipway.gear.original": "` + string(manifest) + `"}},
		"rootfs": {"type": "layers", "diff_ids": ["` + string(diffID) + `"]},
		"history": [{"created": "2024-01-02T03:04:05Z", "created_by": "slipway gear"}],
		"moby.unknown": {"deep": [1.0]}
	}`
	if diff := cmp.Diff(generic(t, []byte(want)), generic(t, got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := gear.IsImageConfig(got); err != nil {
		t.Error(err)
	}
	small, err := gear.ImageConfig([]byte(`{"config":null}`), "", diffID)
	if err != nil {
		t.Fatal(err)
	}
	if err := gear.IsImageConfig(small); err != nil {
		t.Errorf("%s: %v", small, err)
	}
	for config, want := range map[string]error{
		original: gear.ErrNotGear,
		`{"config":{"Labels":{"dev.slipway.gear.version":"2"}}}`: gear.ErrVersion,
		`null`:                    gear.ErrInvalid,
		`[]`:                      gear.ErrInvalid,
		`{"config":{"Labels":1}}`: gear.ErrInvalid,
		`{"config":1}`:            gear.ErrInvalid,
	} {
		if err := gear.IsImageConfig([]byte(config)); !errors.Is(err, want) {
			t.Errorf("%.60s: got %v, want %v", config, err, want)
		}
	}
}

// generic decodes JSON without rounding its numbers.
func generic(t testing.TB, b []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}
