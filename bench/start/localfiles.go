package start

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/wire"
)

// walk lists a tree with the attributes of everything, as find -ls does.
func walk(root string) error {
	n := 0
	err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n++
		_, err = d.Info()
		return err
	})
	if err == nil && n < smallFiles {
		err = fmt.Errorf("%d entries below %s", n, root)
	}
	return err
}

// readTree reads all regular files of a tree.
func readTree(root string) error {
	buf := make([]byte, 1<<20)
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		_, err = readFile(path, buf)
		return err
	})
}

// readFile reads a file in pieces of the buffer's size.
func readFile(path string, buf []byte) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
}

func smallPath(i int) string { return fmt.Sprintf("opt/files/d%02d/f%03d", i%20, i) }

const largePath = "opt/files/large"

// readSmall opens, reads and closes the small files.
func readSmall(root string) error {
	buf := make([]byte, smallBytes+1)
	for i := range smallFiles {
		n, err := readFile(filepath.Join(root, smallPath(i)), buf)
		if err != nil || n != smallBytes {
			return fmt.Errorf("%d bytes of a small file: %w", n, err)
		}
	}
	return nil
}

func readLarge(root string) error {
	n, err := readFile(filepath.Join(root, largePath), make([]byte, 1<<20))
	if err == nil && n != largeBytes {
		err = fmt.Errorf("%d bytes of the large file", n)
	}
	return err
}

// mapLarge maps the large file and reads a byte of each page.
func mapLarge(root string) error {
	f, err := os.Open(filepath.Join(root, largePath))
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, largeBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var sum byte
	for i := 0; i < len(m); i += 4096 {
		sum |= m[i]
	}
	if sum == 0 {
		err = errors.New("the large file holds zeros")
	}
	return errors.Join(err, unix.Munmap(m))
}

// inTree runs a program in a tree that has /proc and the machine's /dev, because Python
// starts only if it can read /dev/urandom. It is an error if the output does not contain
// want.
func inTree(root, want string, args ...string) (err error) {
	for _, m := range []struct {
		source, dir, kind string
		flags             uintptr
	}{{"proc", "proc", "proc", 0}, {"/dev", "dev", "", unix.MS_BIND}} {
		at := filepath.Join(root, m.dir)
		if err := unix.Mount(m.source, at, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
		defer func() { err = errors.Join(err, unix.Unmount(at, 0)) }()
	}
	var out bytes.Buffer
	cmd := &exec.Cmd{Path: args[0], Args: args, Dir: "/", Stdout: &out, Stderr: &out,
		Env:         []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"},
		SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out.String())
	}
	if !strings.Contains(out.String(), want) {
		return fmt.Errorf("%s printed %q", args[0], out.String())
	}
	return nil
}

func startPython(root string) error {
	return inTree(root, "ok", "/usr/local/bin/python3", "-c", `import json, random, collections, itertools; print("ok")`)
}

func startJava(root string) error {
	return inTree(root, "openjdk version", "/usr/lib/jvm/java-17-openjdk-amd64/bin/java", "-version")
}

// generate writes an image to a layout: a base and a layer of generated files. The same source
// gives the same image.
func generate(dir string, base *corpus.Image, source *rand.ChaCha8) (*corpus.Image, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	diff := sha256.New()
	// Noise does not compress, so the fastest level loses nothing.
	zip, err := gzip.NewWriterLevel(&raw, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := writeFiles(io.MultiWriter(zip, diff), source); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	var config map[string]any
	b, err := os.ReadFile(base.Blob(base.Config.Digest))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return nil, err
	}
	rootfs, ok := config["rootfs"].(map[string]any)
	if !ok {
		return nil, errors.New("the base's configuration has no layers")
	}
	ids, _ := rootfs["diff_ids"].([]any)
	rootfs["diff_ids"] = append(ids, fmt.Sprintf("sha256:%x", diff.Sum(nil)))
	delete(config, "history") // the history would lack the new layer
	if b, err = json.Marshal(config); err != nil {
		return nil, err
	}
	doc := wire.Document{SchemaVersion: 2, MediaType: base.ManifestType,
		Config: &wire.Descriptor{MediaType: base.Config.MediaType, Digest: wire.Digest(b), Size: int64(len(b))},
		Layers: append(base.Layers[:len(base.Layers):len(base.Layers)],
			wire.Descriptor{MediaType: base.Layers[0].MediaType, Digest: wire.Digest(raw.Bytes()), Size: int64(raw.Len())})}
	for _, l := range base.Layers {
		if err := linkOrCopy(base.Blob(l.Digest), blobPath(dir, l.Digest)); err != nil {
			return nil, err
		}
	}
	im, err := writeLayout(dir, doc, b, raw.Bytes())
	if err != nil {
		return nil, err
	}
	im.Series, im.Version = "files", "1"
	return im, nil
}

func blobPath(dir, digest string) string {
	return filepath.Join(dir, "blobs", strings.ReplaceAll(digest, ":", "/"))
}

// writeLayout writes an image's index, manifest, configuration and last layer. Its other layers
// exist already.
func writeLayout(dir string, doc wire.Document, config, layer []byte) (*corpus.Image, error) {
	manifest, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	index, err := json.Marshal(wire.Document{SchemaVersion: 2, Manifests: []wire.Descriptor{
		{MediaType: doc.MediaType, Digest: wire.Digest(manifest), Size: int64(len(manifest))}}})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{filepath.Join(dir, "oci-layout"): []byte(`{"imageLayoutVersion":"1.0.0"}`), filepath.Join(dir, "index.json"): index,
		blobPath(dir, wire.Digest(manifest)): manifest, blobPath(dir, doc.Config.Digest): config, blobPath(dir, doc.Layers[len(doc.Layers)-1].Digest): layer}
	for name, b := range files {
		if err := os.WriteFile(name, b, 0o644); err != nil {
			return nil, err
		}
	}
	return corpus.ReadLayout(dir)
}

// linkOrCopy makes a file appear at another path; crane does not accept symbolic links.
func linkOrCopy(from, to string) error {
	err := os.Link(from, to)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// writeFiles writes the layer.
func writeFiles(w io.Writer, source *rand.ChaCha8) error {
	t := tar.NewWriter(w)
	for _, name := range []string{"opt/", "opt/files/"} {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}); err != nil {
			return err
		}
	}
	for d := range 20 {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprintf("opt/files/d%02d/", d), Mode: 0o755}); err != nil {
			return err
		}
	}
	file := func(name string, size int64) error {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(t, source, size)
		return err
	}
	for i := range smallFiles {
		if err := file(smallPath(i), smallBytes); err != nil {
			return err
		}
	}
	if err := file(largePath, largeBytes); err != nil {
		return err
	}
	return t.Close()
}

// sharedPages reads the large file in the tree of a container, and then in the trees of
// other containers of the same image. It records how much more the page cache holds after
// the others.
func (b *bench) sharedPages(ctx context.Context, p *pair, im *corpus.Image, out *Local) error {
	const more = 19
	chain, err := im.ChainID()
	if err != nil {
		return err
	}
	t := p.trees[1]
	var before int64
	for i := range more + 1 {
		root, err := t.mount(ctx, fmt.Sprintf("share%d", i), chain)
		if err != nil {
			return err
		}
		if err := readLarge(root); err != nil {
			return err
		}
		if i == 0 {
			if before, err = pageCache(); err != nil {
				return err
			}
		}
	}
	after, err := pageCache()
	if err != nil {
		return err
	}
	out.Containers, out.LargeBytes, out.SharedBytes = more, largeBytes, max(0, after-before)
	for i := range more + 1 {
		if err := t.unmount(ctx, fmt.Sprintf("share%d", i)); err != nil {
			return err
		}
	}
	return nil
}

// pageCache returns the number of bytes that the kernel's page cache holds.
func pageCache() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		var kib int64
		if _, err := fmt.Sscanf(l, "Cached: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo does not tell the page cache")
}
