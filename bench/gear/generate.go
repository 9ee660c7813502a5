package gear

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"example.org/slipway/integration/internal/wire"
)

// These constants determine the generated set: three states of a system, and versions of
// two applications on it. The set has everything that layers can hold (links, devices,
// attributes, whiteouts, opaque directories), and files of the usual sizes.
const (
	systemFiles, programFiles = 3000, 700
	changedPerState           = 8 // one file in this many changes from a state of the system to the next
	largeProgram              = 9 << 20
)

// generate writes the set as layouts below a directory.
func generate(dir string) error {
	var systems []archive
	for state := range 3 {
		systems = append(systems, system(state))
		if err := writeLayout(filepath.Join(dir, "system"), fmt.Sprintf("%d", state), systems[state]); err != nil {
			return err
		}
	}
	for n, name := range []string{"shop", "wiki"} {
		runtime := program(name, n)
		for version := range 4 {
			base := systems[(n+version)/2]
			if err := writeLayout(filepath.Join(dir, name), fmt.Sprintf("1.%d", version), base, runtime, release(name, version)); err != nil {
				return err
			}
		}
	}
	return nil
}

// layer is a tar archive under construction. Writing to memory cannot fail, and a bad header is a
// mistake in this file.
type layer struct {
	buf bytes.Buffer
	w   *tar.Writer
}

func newLayer() *layer {
	l := &layer{}
	l.w = tar.NewWriter(&l.buf)
	return l
}

func (l *layer) add(h tar.Header, data []byte) {
	h.Size, h.Format = int64(len(data)), tar.FormatPAX
	if h.Mode == 0 {
		h.Mode = 0o644
	}
	h.ModTime = time.Unix(1_700_000_000+int64(len(h.Name)), 123_456_789)
	if h.Typeflag == tar.TypeLink { // a link's header names its target
		h.ModTime = time.Unix(1_700_000_000+int64(len(h.Linkname)), 123_456_789)
	}
	if err := l.w.WriteHeader(&h); err != nil {
		panic(fmt.Sprintf("generate %s: %v", h.Name, err))
	}
	if _, err := l.w.Write(data); err != nil {
		panic(fmt.Sprintf("generate %s: %v", h.Name, err))
	}
}

func (l *layer) dir(names ...string) {
	for _, n := range names {
		l.add(tar.Header{Typeflag: tar.TypeDir, Name: n + "/", Mode: 0o755}, nil)
	}
}

func (l *layer) file(name string, data []byte) {
	l.add(tar.Header{Typeflag: tar.TypeReg, Name: name}, data)
}

// archive is a finished layer: its diff ID and its compressed form.
type archive struct {
	diffID string
	zipped []byte
}

func (l *layer) done() archive {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	err := l.w.Close()
	if err == nil {
		_, err = z.Write(l.buf.Bytes())
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("generate: %v", err))
	}
	return archive{wire.Digest(l.buf.Bytes()), out.Bytes()}
}

// system returns the layer of a state of the system.
func system(state int) archive {
	l := newLayer()
	l.dir("bin", "dev", "etc", "usr", "usr/lib", "usr/share", "var", "var/cache", "var/cache/old")
	for i := range systemFiles {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		if i%changedPerState < state && r.IntN(3) > 0 {
			r = rand.New(rand.NewPCG(uint64(10+state), uint64(i)))
		}
		where := [...]string{"usr/lib/lib%d.so", "usr/share/doc%d.txt", "etc/conf%d", "bin/tool%d"}[i%4]
		l.file(fmt.Sprintf(where, i), content(r, i%4 != 1))
	}
	l.file("var/cache/old/index", []byte("to be hidden"))
	l.file("usr/lib/large.so", machineCode(rand.New(rand.NewPCG(2, uint64(state))), largeProgram))
	l.add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/su", Mode: 0o4755}, []byte("set user id"))
	l.add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/ping", Mode: 0o755, PAXRecords: map[string]string{
		"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}, []byte("capability"))
	l.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "lib", Linkname: "usr/lib", Mode: 0o777}, nil)
	l.add(tar.Header{Typeflag: tar.TypeLink, Name: "bin/ping6", Linkname: "bin/ping", Mode: 0o755}, nil)
	l.add(tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}, nil)
	l.add(tar.Header{Typeflag: tar.TypeFifo, Name: "dev/initctl", Mode: 0o600}, nil)
	return l.done()
}

// program returns the layer that all versions of an application share.
func program(name string, n int) archive {
	l := newLayer()
	l.dir("opt", "opt/"+name)
	for i := range programFiles {
		// A third of the files are in the other application too.
		r := rand.New(rand.NewPCG(uint64(20+n*min(1, i%3)), uint64(i)))
		l.file(fmt.Sprintf("opt/%s/part%d", name, i), content(r, i%2 == 0))
	}
	l.file("bin/.wh.tool3", nil)
	return l.done()
}

// release returns the topmost layer.
func release(name string, version int) archive {
	l := newLayer()
	l.dir("opt", "opt/"+name, "opt/"+name+"/etc", "var", "var/cache", "var/cache/old")
	l.file("var/cache/old/.wh..wh..opq", nil)
	l.file("var/cache/old/new", []byte("seen"))
	for i := range 60 {
		l.file(fmt.Sprintf("opt/%s/etc/rule%d", name, i), content(rand.New(rand.NewPCG(uint64(30+version*min(1, i%4)), uint64(i))), false))
	}
	return l.done()
}

// content returns a file of a usual size: half of them are below 4 KiB, and few above 64 KiB.
func content(r *rand.Rand, code bool) []byte {
	size := r.IntN(4 << 10)
	switch p := r.IntN(100); {
	case p >= 97:
		size = r.IntN(400 << 10)
	case p >= 55:
		size = 4<<10 + r.IntN(30<<10)
	}
	if code {
		return machineCode(r, size)
	}
	return prose(r, size)
}

// prose returns data that compresses about as well as text.
func prose(r *rand.Rand, size int) []byte {
	const syllables = "ba be bi bo bu da de di do du ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu ra re ri ro ru sa se si so su ta te ti to tu"
	all := strings.Fields(syllables)
	var b bytes.Buffer
	for b.Len() < size {
		for range 1 + r.IntN(3) {
			b.WriteString(all[int(float64(len(all))*r.Float64()*r.Float64())])
		}
		b.WriteByte(" \n"[min(1, r.IntN(12)/11)])
	}
	return b.Bytes()[:size]
}

// machineCode returns data that compresses about as well as programs.
func machineCode(r *rand.Rand, size int) []byte {
	b := make([]byte, 0, size+64)
	for len(b) < size {
		if len(b) > 256 && r.IntN(3) > 0 {
			n := 4 + r.IntN(24)
			at := len(b) - n - r.IntN(min(len(b)-n, 4<<10))
			b = append(b, b[at:at+n]...)
			continue
		}
		for range 8 {
			b = append(b, byte(r.Uint32()))
		}
	}
	return b[:size]
}

// writeLayout writes an image of the layers as an OCI layout DIR/TAG.
func writeLayout(dir, tag string, layers ...archive) error {
	dir = filepath.Join(dir, tag)
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	put := func(mediaType string, data []byte) (wire.Descriptor, error) {
		d := wire.Descriptor{MediaType: mediaType, Digest: wire.Digest(data), Size: int64(len(data))}
		return d, os.WriteFile(filepath.Join(blobs, strings.TrimPrefix(d.Digest, "sha256:")), data, 0o644)
	}
	doc := wire.Document{SchemaVersion: 2, MediaType: manifestType}
	var ids []string
	for _, l := range layers {
		ids = append(ids, l.diffID)
		d, err := put(layerType, l.zipped)
		if err != nil {
			return err
		}
		doc.Layers = append(doc.Layers, d)
	}
	config, err := put(configType, imageConfig(ids))
	if err != nil {
		return err
	}
	doc.Config = &config
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	top, err := put(manifestType, text)
	if err != nil {
		return err
	}
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(wire.Document{SchemaVersion: 2, Manifests: []wire.Descriptor{top}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644)
}

// These are the media types of images.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
	plainType    = "application/vnd.oci.image.layer.v1.tar"
)

// imageConfig returns the configuration of an image whose layers have these diff IDs.
func imageConfig(diffIDs []string) []byte {
	type rootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	b, err := json.Marshal(struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		RootFS       rootFS `json:"rootfs"`
	}{"amd64", "linux", rootFS{"layers", diffIDs}})
	if err != nil {
		panic(err) // cannot happen: the document holds only strings
	}
	return b
}
