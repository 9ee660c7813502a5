package client_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/export"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve/servetest"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount overlays and make files of other owners: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// bed is a client and the registry it uses.
type bed struct {
	t   testing.TB
	url string
	reg *client.Client
	*gearclient.Client
}

func newBed(t testing.TB) *bed { return dial(t, servetest.Start(t), nil) }

func dial(t testing.TB, url string, o *gearclient.Options) *bed {
	t.Helper()
	reg, err := client.New(url, &client.Options{RetryWait: time.Millisecond, Retries: 2})
	must(t, err)
	t.Cleanup(func() { reg.Close() })
	if o == nil {
		o = &gearclient.Options{}
	}
	o.AskEvery, o.RetryWait = 10*time.Millisecond, time.Millisecond
	return &bed{t, url, reg, gearclient.New(reg, o)}
}

// throughProxy returns a client whose requests go through a proxy. The proxy calls handle
// first, which reports whether it answered the request. Other requests go to the registry
// of b.
func (b *bed) throughProxy(o *gearclient.Options, handle func(w http.ResponseWriter, r *http.Request) bool, change func(*http.Response) error) *bed {
	b.t.Helper()
	u, err := url.Parse(b.url)
	must(b.t, err)
	p := httputil.NewSingleHostReverseProxy(u)
	p.ModifyResponse = change
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	tr := &http.Transport{DisableCompression: true}
	p.Transport = tr
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handle != nil && handle(w, r) {
			return
		}
		p.ServeHTTP(w, r)
	}))
	b.t.Cleanup(func() { s.Close(); tr.CloseIdleConnections() })
	return dial(b.t, s.URL, o)
}

// noise returns n incompressible bytes.
func noise(seed uint64, n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return string(b)
}

// member is an entry of a layer.
type member struct {
	tar.Header
	data string
}

func file(name, data string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}, data}
}

func dir(name string) member {
	return member{tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, ""}
}

// link returns a link. A hard link has the mode of a member that file returns.
func link(kind byte, name, to string) member {
	mode := int64(0o777)
	if kind == tar.TypeLink {
		mode = 0o644
	}
	return member{tar.Header{Typeflag: kind, Name: name, Linkname: to, Mode: mode}, ""}
}

// at sets the time of a member.
func at(sec int64, m member) member {
	m.ModTime = time.Unix(sec, 5)
	return m
}

func layer(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, m := range members {
		h := m.Header
		h.Format = tar.FormatPAX
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_600_000_000+int64(i), 123_456_789)
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, m.data)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

// original returns the layers of the test image: whiteouts, an opaque directory, links
// over layers, large files, duplicates, owners, attributes and a device.
func original(t testing.TB) [][]byte {
	setuid := file("usr/bin/su", "su")
	setuid.Mode, setuid.Uid, setuid.Gid = 0o4755, 7, 8
	attr := file("usr/share/attr", "attr")
	attr.PAXRecords = map[string]string{"SCHILY.xattr.user.note": "x\x00y"}
	null := member{tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
	return [][]byte{
		layer(t, dir("bin"), dir("dev"), dir("etc"), dir("tmp"), dir("usr"), dir("usr/bin"), dir("usr/share"), dir("old"), dir("old/deep"),
			at(1, file("bin/sh", noise(1, 100_000))), at(1, link(tar.TypeLink, "bin/ash", "bin/sh")), link(tar.TypeSymlink, "sh", "bin/sh"), null,
			file("etc/motd", "hello"), file("etc/motd2", "hello"), file("etc/empty", ""), file("etc/gone", "gone"), setuid, attr,
			file("old/a", "a"), file("old/deep/b", "b"), file("usr/large", noise(2, 6<<20)+strings.Repeat("\x00", 1<<20))),
		layer(t, file("etc/.wh.gone", ""), dir("old"), file("old/.wh..wh..opq", ""), file("old/new", "new"), file("usr/large2", noise(3, 5<<20)),
			at(1, link(tar.TypeLink, "usr/bin/sh", "bin/sh"))),
		layer(t, file("etc/motd", "bye"), dir("opt"), file("opt/copy", noise(1, 100_000))),
	}
}

const env = `"Env":["A=b"],"Entrypoint":["/bin/sh"],"Labels":{"who":"me"}`

// pushImage pushes an image with the given layers and returns its manifest.
func (b *bed) pushImage(repo, ref, platform string, layers [][]byte) oci.Descriptor {
	b.t.Helper()
	p, err := oci.ParsePlatform(platform)
	must(b.t, err)
	var descs []oci.Descriptor
	var diffs []oci.Digest
	for _, l := range layers {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, err := w.Write(l)
		must(b.t, err, w.Close())
		descs = append(descs, b.pushBlob(repo, ocispec.MediaTypeImageLayerGzip, z.Bytes()))
		diffs = append(diffs, oci.SHA256(l))
	}
	diffJSON, err := json.Marshal(diffs)
	must(b.t, err)
	cfg := b.pushBlob(repo, ocispec.MediaTypeImageConfig, fmt.Appendf(nil,
		`{"created":"2020-01-02T03:04:05Z","os":%q,"architecture":%q,"variant":%q,"config":{%s},"rootfs":{"type":"layers","diff_ids":%s},"history":[{"created_by":"x"}],"unknown":1}`,
		p.OS, p.Architecture, p.Variant, env, diffJSON))
	return b.pushManifest(repo, ref, oci.MediaTypeOCIManifest, ocispec.Manifest{MediaType: oci.MediaTypeOCIManifest, Config: cfg, Layers: descs,
		Annotations: map[string]string{"note": "kept"}})
}

func (b *bed) pushBlob(repo, mediaType string, data []byte) oci.Descriptor {
	b.t.Helper()
	d := oci.Descriptor{MediaType: mediaType, Digest: oci.SHA256(data), Size: int64(len(data))}
	_, err := b.reg.PushBlob(b.t.Context(), repo, d.Digest, d.Size, bytes.NewReader(data))
	must(b.t, err)
	return d
}

func (b *bed) pushManifest(repo, ref, mediaType string, m any) oci.Descriptor {
	b.t.Helper()
	raw, err := json.Marshal(m)
	must(b.t, err)
	raw = bytes.Replace(raw, []byte(`"schemaVersion":0`), []byte(`"schemaVersion":2`), 1)
	put := oci.PutManifest{Bytes: raw, MediaType: mediaType}
	if ref != "" {
		put.Tags = []string{ref}
	}
	res, err := b.reg.PutManifest(b.t.Context(), repo, put)
	must(b.t, err)
	return oci.Descriptor{MediaType: mediaType, Digest: res.Digest, Size: int64(len(raw))}
}

// image opens an image for its only platform, or for linux/amd64.
func (b *bed) image(repo, ref string) *gearclient.Image {
	b.t.Helper()
	img, err := b.One(b.t.Context(), repo, ref, &oci.Platform{OS: "linux", Architecture: "amd64"})
	must(b.t, err)
	return img
}

// export writes an image into a new directory.
func (b *bed) export(img *gearclient.Image) string {
	b.t.Helper()
	x, err := b.Index(b.t.Context(), img)
	must(b.t, err)
	out := filepath.Join(b.t.TempDir(), "out")
	must(b.t, export.Tree(b.t.Context(), x, b.Files(img, x), out, nil))
	return out
}

// unpack applies layers in the simplest way: each entry in turn, then the times of the
// directories.
func unpack(t testing.TB, layers [][]byte) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "plain")
	must(t, os.Mkdir(root, 0o755))
	dirs := map[string]time.Time{}
	for _, l := range layers {
		for r := tar.NewReader(bytes.NewReader(l)); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			path := filepath.Join(root, h.Name)
			base := filepath.Base(path)
			switch {
			case base == ".wh..wh..opq":
				must(t, os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o755))
				continue
			case strings.HasPrefix(base, ".wh."):
				must(t, os.RemoveAll(filepath.Join(filepath.Dir(path), base[4:])))
				continue
			case h.Typeflag == tar.TypeLink:
				must(t, os.Link(filepath.Join(root, h.Linkname), path))
				continue
			case h.Typeflag == tar.TypeDir:
				must(t, os.MkdirAll(path, 0o755))
				dirs[path] = h.ModTime
			case h.Typeflag == tar.TypeSymlink:
				must(t, os.Symlink(h.Linkname, path))
			case h.Typeflag == tar.TypeChar:
				must(t, unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))))
			default:
				data, err := io.ReadAll(r)
				must(t, err, os.RemoveAll(path), os.WriteFile(path, data, 0o600))
			}
			must(t, os.Lchown(path, h.Uid, h.Gid))
			if h.Typeflag != tar.TypeSymlink {
				must(t, unix.Chmod(path, uint32(h.Mode)))
			}
			for k, v := range h.PAXRecords {
				if name, ok := strings.CutPrefix(k, "SCHILY.xattr."); ok {
					must(t, unix.Lsetxattr(path, name, []byte(v), 0))
				}
			}
			setTime(t, path, h.ModTime)
		}
	}
	for path, at := range dirs {
		if _, err := os.Lstat(path); err == nil { // no later layer has removed it
			setTime(t, path, at)
		}
	}
	return root
}

func setTime(t testing.TB, path string, at time.Time) {
	t.Helper()
	ts := unix.NsecToTimespec(at.UnixNano())
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
}

// describe returns a tree as the operating system shows it, one line per path, without
// the root itself.
func describe(t testing.TB, root string) map[string]string {
	t.Helper()
	out, first := map[string]string{}, map[uint64]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		line := fmt.Sprintf("%o %d:%d %d.%09d dev %x", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Rdev)
		switch {
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(b))
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		if !d.IsDir() && st.Nlink > 1 {
			if f, ok := first[st.Ino]; ok {
				line += " = " + f
			} else {
				first[st.Ino] = name
			}
		}
		buf := make([]byte, 4096)
		n, err := unix.Llistxattr(path, buf)
		if err != nil {
			return err
		}
		names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
		slices.Sort(names)
		for _, x := range names {
			if x != "" {
				n, err := unix.Lgetxattr(path, x, buf)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %s=%q", x, buf[:n])
			}
		}
		out[name] = line
		return nil
	}))
	return out
}
