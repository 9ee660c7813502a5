package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/gear"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func wantTree(t testing.TB, want, got string) {
	t.Helper()
	if diff := cmp.Diff(describe(t, want), describe(t, got)); diff != "" {
		t.Errorf("the trees differ (-want +got):\n%s", diff)
	}
}

// TestConvert checks that a converted image has the same tree and runs the same way, and
// that converting again gives the same image.
func TestConvert(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	layers := original(t)
	plain := unpack(t, layers)
	desc := b.pushImage("team/app", "v1", "linux/amd64", layers)
	wantTree(t, plain, b.export(b.image("team/app", "v1")))

	amd64 := gearclient.Selection{Platforms: []oci.Platform{{OS: "linux", Architecture: "amd64"}}}
	out, err := b.Convert(t.Context(), "team/app", "v1", gearclient.ConvertOptions{Select: amd64})
	must(t, err)
	if out.Tag != "v1-gear" || out.Original != desc.Digest || len(out.Images) != 1 || out.Images[0].Digest != out.Digest {
		t.Errorf("got %+v", out)
	}
	again, err := b.Convert(t.Context(), "team/app", "v1", gearclient.ConvertOptions{Tag: "other"})
	if err != nil || again.Digest != out.Digest {
		t.Errorf("the second time: got %s and %v, want %s", again.Digest, err, out.Digest)
	}
	img := b.image("team/app", "v1-gear")
	if !img.Gear || img.Original != desc.Digest || img.Manifest.Digest != out.Digest {
		t.Errorf("got the image %+v", img)
	}
	wantTree(t, plain, b.export(img))
	var cfg struct {
		OS      string `json:"os"`
		Unknown int    `json:"unknown"`
		Config  struct {
			Env, Entrypoint []string
			Labels          map[string]string
		} `json:"config"`
	}
	must(t, json.Unmarshal(img.Config, &cfg))
	if cfg.OS != "linux" || cfg.Unknown != 1 || len(cfg.Config.Env) != 1 || len(cfg.Config.Entrypoint) != 1 || cfg.Config.Labels["who"] != "me" {
		t.Errorf("got the configuration %s", img.Config)
	}
	if !strings.Contains(string(img.Manifest.Bytes), `"note":"kept"`) {
		t.Errorf("got the manifest %s", img.Manifest.Bytes)
	}

	for name, tt := range map[string]struct {
		ref, tag, want string
	}{
		"a Gear image":           {"v1-gear", "", "Gear image already"},
		"the original's tag":     {"v1", "v1", "choose another"},
		"a digest":               {string(desc.Digest), "", "needs a tag"},
		"what is not there":      {"v9", "", "MANIFEST_UNKNOWN"},
		"a tag that cannot be":   {"v1", "-", "TAG_INVALID"},
		"a tag that is too long": {"v1", strings.Repeat("x", 129), "TAG_INVALID"},
	} {
		if _, err := b.Convert(t.Context(), "team/app", tt.ref, gearclient.ConvertOptions{Tag: tt.tag}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("convert %s: got %v, want %q", name, err, tt.want)
		}
	}
}

// TestPlatforms finds the image for each platform and converts an index.
func TestPlatforms(t *testing.T) {
	b := newBed(t)
	var list []oci.Descriptor
	for _, p := range []string{"linux/amd64", "linux/arm/v6", "linux/arm/v7", "linux/arm64/v8"} {
		d := b.pushImage("app", "", p, [][]byte{layer(t, file("platform", p))})
		parsed, err := oci.ParsePlatform(p)
		must(t, err)
		d.Platform = &ocispec.Platform{OS: parsed.OS, Architecture: parsed.Architecture, Variant: parsed.Variant}
		list = append(list, d)
	}
	attestation := b.pushManifest("app", "", oci.MediaTypeOCIManifest, ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest,
		Config: b.pushBlob("app", ocispec.MediaTypeImageConfig, []byte("{}")), Layers: []oci.Descriptor{}})
	attestation.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
	inner := b.pushManifest("app", "", oci.MediaTypeOCIIndex, ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: list[2:]})
	b.pushManifest("app", "v1", oci.MediaTypeOCIIndex, ocispec.Index{MediaType: oci.MediaTypeOCIIndex,
		Manifests: []oci.Descriptor{attestation, list[0], list[1], inner}, Annotations: map[string]string{"index": "kept"}})

	for want, found := range map[string]string{"linux/amd64": "linux/amd64", "linux/arm": "linux/arm/v7", "linux/arm/v6": "linux/arm/v6",
		"linux/arm64": "linux/arm64/v8", "linux/s390x": "", "linux/arm/v5": ""} {
		p, err := oci.ParsePlatform(want)
		must(t, err)
		img, err := b.One(t.Context(), "app", "v1", &p)
		if found == "" {
			if err == nil || !strings.Contains(err.Error(), "only for linux/amd64, linux/arm/v6") || !strings.Contains(err.Error(), "--platform") {
				t.Errorf("%s: got %v", want, err)
			}
			continue
		}
		if err != nil || img.Platform.String() != found {
			t.Errorf("%s: got %v, %v", want, img, err)
		}
	}
	out, err := b.Convert(t.Context(), "app", "v1", gearclient.ConvertOptions{Select: gearclient.Selection{All: true}})
	must(t, err)
	set, err := b.Resolve(t.Context(), "app", "v1-gear", gearclient.Selection{All: true})
	must(t, err)
	if set.Manifest.Digest != out.Digest || !set.Index || len(set.Images) != 4 || !strings.Contains(string(set.Manifest.Bytes), `"index":"kept"`) {
		t.Fatalf("got %s of %d images", set.Manifest.Bytes, len(set.Images))
	}
	for i, img := range set.Images {
		x, err := b.Index(t.Context(), img)
		must(t, err)
		want := set.Images[i].Platform.String()
		if !img.Gear || x.Files[0].Name != gear.Name(gearName(want)) || img.Original != list[i].Digest {
			t.Errorf("%s: got Gear image %v of %s", want, img.Gear, img.Original)
		}
	}
	if _, err := b.One(t.Context(), "app", string(list[0].Digest), &oci.Platform{OS: "linux", Architecture: "arm"}); err == nil || !strings.Contains(err.Error(), "linux/amd64 only") {
		t.Errorf("another platform of one image: got %v", err)
	}
	for _, s := range []string{"", "linux", "linux/", "a/b/c/d", "/amd64"} {
		if p, err := oci.ParsePlatform(s); err == nil {
			t.Errorf("%q was read as %v", s, p)
		}
	}
}

// TestUnnamedPlatforms resolves indexes of one or two images. The images are for this
// machine, for its 32-bit kind or for another machine, and the index names their
// platforms or does not. The choice must be containerd's: first an image whose platform
// is named as this machine's, then one that is named as its 32-bit kind, then the first
// image without a name whose configuration is for either.
func TestUnnamedPlatforms(t *testing.T) {
	b := newBed(t)
	host := oci.HostPlatform()
	var all []oci.Descriptor
	platforms := []string{host.String(), "linux/s390x"}
	if older := host.Fallback(); older.OS != "" {
		platforms = append(platforms, older.String())
	}
	rank := map[oci.Digest]int{} // images with a lower number are preferred; those from 10 on are for another machine
	for i, name := range platforms {
		for _, named := range []bool{true, false} {
			d := b.pushImage("app", "", name, [][]byte{layer(t, file("platform", fmt.Sprint(name, named)))})
			rank[d.Digest] = []int{0, 10, 1}[i]
			if p, err := oci.ParsePlatform(name); named {
				must(t, err)
				d.Platform = &ocispec.Platform{OS: p.OS, Architecture: p.Architecture}
			} else {
				rank[d.Digest] = []int{2, 12, 2}[i]
			}
			all = append(all, d)
		}
	}
	var lists [][]oci.Descriptor
	for _, one := range all {
		lists = append(lists, []oci.Descriptor{one})
		for _, other := range all {
			if other.Digest != one.Digest {
				lists = append(lists, []oci.Descriptor{one, other})
			}
		}
	}
	for n, list := range lists {
		tag := fmt.Sprint("v", n)
		b.pushManifest("app", tag, oci.MediaTypeOCIIndex, ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: list})
		var want oci.Digest
		best := 100
		for _, d := range list {
			r := rank[d.Digest]
			if r == 12 { // only its configuration rules it out
				r = 2
			}
			if r < best {
				best, want = r, d.Digest
			}
		}
		img, err := b.One(t.Context(), "app", tag, nil)
		if fits := rank[want] < 10; fits != (err == nil) || fits && img.Manifest.Digest != want {
			t.Errorf("of %v came %v, error %v; want %s", list, img, err, want)
		}
	}
}

// TestBrokenStream checks that a fetch resumes where it broke off, also in the middle of
// a large file.
func TestBrokenStream(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	layers := original(t)
	b.pushImage("app", "v1", "linux/amd64", layers)
	b.export(b.image("app", "v1")) // makes the registry convert the image
	var fetches atomic.Int64
	cut := b.throughProxy(nil, nil, func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, "/fetch") {
			// The first part ends within the first large file or before it.
			r.Body = &cutBody{r.Body, 50_000 + 500_000*fetches.Add(1)}
			r.ContentLength = -1
			r.Header.Del("Content-Length")
		}
		return nil
	})
	wantTree(t, unpack(t, layers), cut.export(cut.image("app", "v1")))
	if n := fetches.Load(); n < 3 {
		t.Errorf("%d fetches; nothing was cut", n)
	}
}

// cutBody is a body that breaks off after a number of bytes.
type cutBody struct {
	io.ReadCloser
	left int64
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("cut")
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// TestBadStream checks that the client gives up a stream that makes no progress.
func TestBadStream(t *testing.T) {
	b := newBed(t)
	b.pushImage("app", "v1", "linux/amd64", [][]byte{layer(t, file("a", "a"))})
	var asked atomic.Int64
	bad := b.throughProxy(nil, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/fetch") {
			return false
		}
		asked.Add(1)
		w.Header().Set("Content-Type", client.MediaTypeGearStream)
		s := gear.NewStreamWriter(w)
		_ = s.Failure(gearName("a"), "the disk is on fire")
		_ = s.End()
		return true
	}, nil)
	img := bad.image("app", "v1")
	x, err := bad.Index(t.Context(), img)
	must(t, err)
	err = export.Tree(t.Context(), x, bad.Files(img, x), filepath.Join(t.TempDir(), "out"), nil)
	if err == nil || !strings.Contains(err.Error(), "on fire") || asked.Load() != 5 {
		t.Errorf("asked %d times, got %v", asked.Load(), err)
	}
}

// TestRange checks that whole chunks of a large file are sent compressed. It also reads
// from registries that cannot send chunks and expects the right content.
func TestRange(t *testing.T) {
	b := newBed(t)
	large := strings.Repeat("so compressible ", 5<<16) + noise(4, 300_000)
	b.pushImage("app", "v1", "linux/amd64", [][]byte{layer(t, file("large", large), file("small", noise(5, 1000)))})
	var bytesSent, chunks atomic.Int64
	count := func(r *http.Response) error {
		if strings.Contains(r.Request.URL.Path, "/files/") {
			bytesSent.Store(r.ContentLength)
		}
		if strings.Contains(r.Request.URL.Path, "/chunks/") {
			chunks.Add(1)
		}
		return nil
	}
	older := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/chunks/") {
			return false
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"errors":[{"code":"DIGEST_INVALID","message":"no file's name"}]}`)
		return true
	}
	silent := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2/_slipway/gear" {
			return false
		}
		fmt.Fprint(w, `{"version":1,"limits":{"names":100,"profile_names":1,"file_bytes":1,"upload_bytes":1}}`)
		return true
	}
	size := int64(len(large))
	for what, c := range map[string]*bed{"chunks": b.throughProxy(nil, nil, count), "an older replica": b.throughProxy(nil, older, count), "an older registry": b.throughProxy(nil, silent, count)} {
		img := c.image("app", "v1")
		x, err := c.Index(t.Context(), img)
		must(t, err)
		src := c.Files(img, x)
		for _, tt := range []struct {
			of          string
			off, n      int64
			chunks      int64
			atMost      int64
			description string
		}{
			{large, 0, 1 << 20, 1, 4096, "a chunk"},
			{large, 1 << 20, 3 << 20, 1, 4096, "three"},
			{large, 5 << 20, size - 5<<20, 1, 301_000, "the last"},
			{large, 4 << 20, size - 4<<20, 1, 302_000, "the last two"},
			{large, 1, 1 << 20, 0, 1 << 20, "no whole one"},
			{large, 0, 1<<20 - 1, 0, 1 << 20, "a part of one"},
			{noise(5, 1000), 0, 1000, 0, 1000, "a small file"},
		} {
			var f gear.File
			for _, f = range x.Files {
				if f.Size == int64(len(tt.of)) {
					break
				}
			}
			chunks.Store(0)
			r, err := src.Range(t.Context(), f, tt.off, tt.n, false)
			if err != nil {
				t.Errorf("%s, %s: %v", what, tt.description, err)
				continue
			}
			got, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil || string(got) != tt.of[tt.off:tt.off+tt.n] {
				t.Errorf("%s, %s: %d bytes, want %d, error %v", what, tt.description, len(got), tt.n, err)
			}
			want := tt.chunks
			if what != "chunks" {
				want = 0
			} else if bytesSent.Load() > tt.atMost {
				t.Errorf("%s took %d bytes", tt.description, bytesSent.Load())
			}
			if chunks.Load() != want {
				t.Errorf("%s, %s: %d requests for chunks, want %d", what, tt.description, chunks.Load(), want)
			}
		}
	}
}

// TestSpoiltStreams damages every stream. The files must then come one by one, without a
// new stream of all remaining files for each.
func TestSpoiltStreams(t *testing.T) {
	b := newBed(t)
	var files []member
	for i := range 40 {
		files = append(files, file(fmt.Sprint("f", i), noise(uint64(i), 1000+i)))
	}
	b.pushImage("app", "v1", "linux/amd64", [][]byte{layer(t, files...)})
	var streams atomic.Int64
	c := b.throughProxy(nil, nil, func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/fetch") {
			return nil
		}
		streams.Add(1)
		all, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		all[0] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(all))
		return nil
	})
	img := c.image("app", "v1")
	x, err := c.Index(t.Context(), img)
	must(t, err)
	got := make([]int, len(x.Files))
	must(t, c.Files(img, x).Fetch(t.Context(), x.Files, func(i int, r io.Reader) error {
		got[i]++
		all, err := io.ReadAll(r)
		if gearName(string(all)) != x.Files[i].Name {
			t.Errorf("file %d has other bytes", i)
		}
		return err
	}))
	for i, n := range got {
		if n != 1 {
			t.Errorf("file %d came %d times", i, n)
		}
	}
	if n := streams.Load(); n == 0 || n > 10 {
		t.Errorf("%d streams", n)
	}
}

// TestMissing checks that the error for a missing content names its file and image.
func TestMissing(t *testing.T) {
	b := newBed(t)
	b.pushImage("app", "v1", "linux/amd64", [][]byte{layer(t, file("a", "a"))})
	img := b.image("app", "v1")
	x, err := b.Index(t.Context(), img)
	must(t, err)
	other := gear.File{Name: gearName("elsewhere"), Size: 9}
	x.Files = append(x.Files, other)
	x.Entries = append(x.Entries, gear.Entry{Entry: rootfs.Entry{Path: "lost/file", Type: rootfs.File, Size: 9}, File: 1})
	err = export.Tree(t.Context(), x, b.Files(img, x), filepath.Join(t.TempDir(), "out"), nil)
	var missing *gearclient.MissingError
	if !errors.As(err, &missing) || missing.Path != "lost/file" || missing.Image != "app:v1" || missing.Name != other.Name {
		t.Errorf("got %v", err)
	}
}

// TestWaiting checks that the client waits for a layer that is being converted, and for
// how long.
func TestWaiting(t *testing.T) {
	b := newBed(t)
	b.pushImage("app", "v1", "linux/amd64", [][]byte{layer(t, file("a", "a"))})
	busy := func(times int64) (func(w http.ResponseWriter, r *http.Request) bool, *atomic.Int64) {
		var asked atomic.Int64
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/layers/") || asked.Add(1) > times {
				return false
			}
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"wait","detail":{"state":"converting"}}]}`)
			return true
		}, &asked
	}
	told := 0
	handle, _ := busy(3)
	patient := b.throughProxy(&gearclient.Options{Waiting: func(w gearclient.Waiting) { told++ }}, handle, nil)
	if _, err := patient.Index(t.Context(), patient.image("app", "v1")); err != nil || told < 3 {
		t.Errorf("told %d times, got %v", told, err)
	}
	handle, asked := busy(1e9)
	now := time.Now()
	clock := func() time.Time { now = now.Add(10 * time.Second); return now }
	hasty := b.throughProxy(&gearclient.Options{Wait: 30 * time.Second, Clock: clock}, handle, nil)
	_, err := hasty.Index(t.Context(), hasty.image("app", "v1"))
	var pending *client.GearPendingError
	if !errors.As(err, &pending) || !strings.Contains(err.Error(), "still being converted after 30s") || asked.Load() != 3 {
		t.Errorf("asked %d times, want 3, got %v", asked.Load(), err)
	}
}

// TestRefused checks that the errors for unreadable registries and images say why.
func TestRefused(t *testing.T) {
	b := newBed(t)
	good := layer(t, file("a", "a"))
	b.pushImage("app", "v1", "linux/amd64", [][]byte{good})
	plain := b.throughProxy(nil, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/_slipway/") {
			http.NotFound(w, r)
			return true
		}
		return false
	}, nil)
	if _, err := plain.Index(t.Context(), plain.image("app", "v1")); !errors.Is(err, gearclient.ErrNoGear) || !strings.Contains(err.Error(), "slipway serve") {
		t.Errorf("a registry without Gear: got %v", err)
	}

	b.pushImage("app", "bad", "linux/amd64", [][]byte{good, []byte(strings.Repeat("this is no tar. ", 100))})
	_, err := b.Index(t.Context(), b.image("app", "bad"))
	var pending *client.GearPendingError
	if !errors.As(err, &pending) || pending.RetryAfter != 0 || pending.Reason == "" || !strings.Contains(err.Error(), pending.Reason) {
		t.Errorf("a layer that is none: got %v", err)
	}

	cfg := b.pushBlob("app", ocispec.MediaTypeImageConfig, []byte(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["`+string(oci.SHA256(nil))+`"]}}`))
	l := b.pushBlob("app", ocispec.MediaTypeImageLayer, good)
	b.pushManifest("app", "mixed", oci.MediaTypeOCIManifest, ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cfg, Layers: []oci.Descriptor{l}})
	var mismatch *gear.MismatchError
	if _, err := b.Index(t.Context(), b.image("app", "mixed")); !errors.As(err, &mismatch) {
		t.Errorf("a configuration of another layer: got %v", err)
	}
	b.pushManifest("app", "few", oci.MediaTypeOCIManifest, ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cfg, Layers: []oci.Descriptor{l, l}})
	if _, err := b.Index(t.Context(), b.image("app", "few")); err == nil || !strings.Contains(err.Error(), "lists 1") {
		t.Errorf("more layers than diff IDs: got %v", err)
	}
	chart := b.pushBlob("app", "application/vnd.chart", []byte("{}"))
	b.pushManifest("app", "chart", oci.MediaTypeOCIManifest, ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: chart, Layers: []oci.Descriptor{}})
	if _, err := b.One(t.Context(), "app", "chart", nil); err == nil || !strings.Contains(err.Error(), "no container image") {
		t.Errorf("what is no image: got %v", err)
	}
}

func FuzzParsePlatform(f *testing.F) {
	for _, s := range []string{"linux/amd64", "linux/arm/v7", "/", "a//b", "a/b/c/d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := oci.ParsePlatform(s); err == nil && p.String() != s {
			t.Errorf("%q was read as %q", s, p)
		}
	})
}
