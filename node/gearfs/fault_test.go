package gearfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/poolfs"
)

func entry(path string, size int64) rootfs.Entry {
	return rootfs.Entry{Path: path, Type: rootfs.File, Mode: 0o644, Size: size}
}

// endless is a reader that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// lies returns the ways to send something other than the file.
func lies() map[string]func(f gear.File, r io.Reader) (io.Reader, error) {
	return map[string]func(f gear.File, r io.Reader) (io.Reader, error){
		"wrong bytes": func(f gear.File, r io.Reader) (io.Reader, error) {
			b, err := io.ReadAll(r)
			b[len(b)/2] ^= 1
			return bytes.NewReader(b), err
		},
		"short":   func(f gear.File, r io.Reader) (io.Reader, error) { return io.LimitReader(r, 50), nil },
		"endless": func(f gear.File, r io.Reader) (io.Reader, error) { return io.MultiReader(r, endless{}), nil },
		"cut": func(f gear.File, r io.Reader) (io.Reader, error) {
			return io.MultiReader(io.LimitReader(r, 50), iotestErr{io.ErrUnexpectedEOF}), nil
		},
		"missing": func(gear.File, io.Reader) (io.Reader, error) { return nil, fs.ErrNotExist },
		"401":     func(gear.File, io.Reader) (io.Reader, error) { return nil, errors.New("401 UNAUTHORIZED") },
	}
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

// TestFallOver uses a first source that misbehaves and a second that does not.
func TestFallOver(t *testing.T) {
	for name, lie := range lies() {
		t.Run(name, func(t *testing.T) {
			tr := makeTree(t, append(manyFiles(1, 20), content(3, 5<<20), content(4, 18<<20))...)
			bad, good := newSource(tr), newSource(tr)
			bad.hook = lie
			n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"bad": bad, "good": good})
			n.add("sha256:1", tr, "bad", "good")
			for _, f := range tr.files {
				n.check(tr, f)
			}
			for _, s := range n.Status().Sources {
				if s.Source.Registry == "bad" && s.Error == "" {
					t.Errorf("the status does not tell of the bad source: %+v", s)
				}
			}
		})
	}
}

// TestNoHonestSource checks that without an honest source a read ends soon with an error, and never
// with wrong bytes.
func TestNoHonestSource(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, lie := range lies() {
		t.Run(name, func(t *testing.T) {
			tr := makeTree(t, content(1, 5000), content(2, 5<<20), content(3, 18<<20))
			bad := newSource(tr)
			var lying atomic.Bool
			lying.Store(true)
			bad.hook = func(f gear.File, r io.Reader) (io.Reader, error) {
				if lying.Load() {
					return lie(f, r)
				}
				return r, nil
			}
			n := newNode(t, gearfs.Options{Bound: 200 * time.Millisecond}, map[string]gearfs.Source{"bad": bad})
			n.add("sha256:1", tr, "bad")
			for _, f := range tr.files {
				b, err := n.read(f)
				if err == nil && !bytes.Equal(b, tr.body[f.Name]) {
					t.Fatalf("wrong bytes of a file of %d", f.Size)
				}
				// An endless stream of a range has the right bytes first.
				if err == nil && !(name == "endless" && f.Size >= gear.LargeFile) {
					t.Errorf("a file of %d bytes was read", f.Size)
				}
				if errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the error says that the image lacks the file: %v", err)
				}
			}
			lying.Store(false)
			for _, f := range tr.files { // and later it is right again
				eventually(t, "the file can be read", func() bool {
					b, err := n.read(f)
					return err == nil && bytes.Equal(b, tr.body[f.Name])
				})
			}
		})
	}
}

// TestGoneAndBack takes the registry away for some time. Reads of cached files continue. An open of
// another file fails in time, and works when the registry is back.
func TestGoneAndBack(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 10), content(2, 18<<20))...)
	src := newSource(tr)
	var gone atomic.Bool
	src.request = func(context.Context, []gear.File) error {
		if gone.Load() {
			return errors.New("connection refused")
		}
		return nil
	}
	n := newNode(t, gearfs.Options{Bound: 150 * time.Millisecond}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	n.check(tr, tr.files[0])
	gone.Store(true)
	n.check(tr, tr.files[0])
	for _, f := range []gear.File{tr.files[1], tr.files[10]} {
		began := time.Now()
		_, err := n.read(f)
		if !errors.Is(err, gearfs.ErrTimeout) || time.Since(began) > 10*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	}
	var profile []gear.Name
	for _, f := range tr.files {
		profile = append(profile, f.Name)
	}
	// A start does not wait for an absent registry.
	if got, err := n.Prefetch(t.Context(), "sha256:1", profile); err != nil || got.Left == 0 || got.Took > 10*time.Second {
		t.Errorf("prefetched %+v, %v", got, err)
	}
	gone.Store(false)
	for _, f := range tr.files {
		// So short a bound may also end a pending open of a large file.
		eventually(t, "the file is read", func() bool {
			b, err := n.read(f)
			if err == nil && !bytes.Equal(b, tr.body[f.Name]) {
				t.Fatalf("file %x has other bytes", f.Name)
			}
			return err == nil
		})
	}
	if st := n.Status().Images[0]; st.Errors == 0 || st.Stalls == 0 || st.LongestStall < 100*time.Millisecond {
		t.Errorf("status %+v", st)
	}
}

// TestStall checks that a source which stops sending is given up for another.
func TestStall(t *testing.T) {
	tr := makeTree(t, content(1, 5000), content(2, 18<<20))
	bad, good := newSource(tr), newSource(tr)
	bad.request = func(ctx context.Context, _ []gear.File) error {
		<-ctx.Done()
		return ctx.Err()
	}
	n := newNode(t, gearfs.Options{Stall: 50 * time.Millisecond}, map[string]gearfs.Source{"bad": bad, "good": good})
	n.add("sha256:1", tr, "bad", "good")
	for _, f := range tr.files {
		n.check(tr, f)
	}
}

// TestOutageThenLie checks that wrong bytes get a second try, whatever went wrong before.
func TestOutageThenLie(t *testing.T) {
	for _, size := range []int{5000, 18 << 20} {
		tr := makeTree(t, content(1, size))
		src := newSource(tr)
		var calls atomic.Int64
		src.hook = func(_ gear.File, r io.Reader) (io.Reader, error) {
			switch calls.Add(1) {
			case 1:
				return nil, errors.New("503 service unavailable")
			case 2:
				b, err := io.ReadAll(r)
				b[len(b)/2] ^= 1
				return bytes.NewReader(b), err
			}
			return r, nil
		}
		n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
		n.add("sha256:1", tr, "a")
		n.check(tr, tr.files[0])
		if calls.Load() < 3 {
			t.Errorf("%d requests: nothing went wrong", calls.Load())
		}
	}
}

// TestOneBadFile checks that one bad file does not keep the others from arriving.
func TestOneBadFile(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	tr := makeTree(t, manyFiles(1, 100)...)
	src := newSource(tr)
	src.hook = func(f gear.File, r io.Reader) (io.Reader, error) {
		if f.Name == tr.files[30].Name {
			return nil, errors.New("500 internal error")
		}
		return r, nil
	}
	n := newNode(t, gearfs.Options{Mode: gearfs.Eager, Bound: 5 * time.Second}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	got, err := n.Prefetch(t.Context(), "sha256:1", nil)
	must(t, err)
	if got.Left != 0 || n.cache.Stats().Files != 99 {
		t.Errorf("prefetched %+v, %d files are there", got, n.cache.Stats().Files)
	}
	if _, err := n.read(tr.files[30]); err == nil {
		t.Error("the bad file was read")
	}
}

// TestCancel checks that a caller which stops waiting returns at once.
func TestCancel(t *testing.T) {
	tr := makeTree(t, content(1, 5000), content(2, 18<<20))
	src := newSource(tr)
	src.request = func(ctx context.Context, _ []gear.File) error {
		<-ctx.Done()
		return ctx.Err()
	}
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := n.Open(ctx, poolfs.Key{Name: tr.files[0].Name}); !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
	c, err := n.Open(t.Context(), poolfs.Key{Name: tr.files[1].Name})
	must(t, err)
	if _, err := c.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v", err)
	}
	must(t, c.Close())
}

// TestDamagedCache checks that a file which is too short on disk is fetched again.
func TestDamagedCache(t *testing.T) {
	tr := makeTree(t, content(1, 5000))
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr)})
	n.add("sha256:1", tr, "a")
	n.check(tr, tr.files[0])
	matches, err := filepath.Glob(filepath.Join(n.cache.Files(), "*", "*"))
	must(t, err)
	st, err := os.Stat(matches[0])
	must(t, err, os.Chmod(matches[0], 0o600), os.Truncate(matches[0], 100), os.Chtimes(matches[0], time.Time{}, st.ModTime()))
	n.check(tr, tr.files[0])
	if s := n.cache.Stats(); s.Damaged != 1 {
		t.Errorf("cache %+v", s)
	}
}

// TestBackgroundRate limits the rate of the background and nothing else.
func TestBackgroundRate(t *testing.T) {
	tr := makeTree(t, append(manyFiles(1, 5), content(1, 600<<10), content(2, 600<<10))...)
	src := newSource(tr)
	n := newNode(t, gearfs.Options{BackgroundRate: 1 << 20}, map[string]gearfs.Source{"a": src})
	n.add("sha256:1", tr, "a")
	must(t, n.Background("sha256:1", true))
	began := time.Now()
	eventually(t, "the image is complete", func() bool { return n.Status().Images[0].Complete })
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("1.2 MB at 1 MiB/s took %v", took)
	}
}

// TestBrokenRecords checks that damaged records on disk are left out or made anew.
func TestBrokenRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	tr := makeTree(t, manyFiles(1, 10)...)
	n := newNode(t, gearfs.Options{}, map[string]gearfs.Source{"a": newSource(tr)})
	for _, chain := range []string{"sha256:1", "sha256:2", "sha256:3", "sha256:4"} {
		n.add(chain, tr, "a")
	}
	n.stop()
	at := func(chain, file string) string { return filepath.Join(n.dir, "images", "sha256-"+chain, file) }
	must(t, os.Truncate(at("1", "files"), 100))
	must(t, os.WriteFile(at("2", "record.json"), []byte("{"), 0o600))
	must(t, os.Truncate(at("3", "files"), 100), os.Truncate(at("3", "index"), 50))
	must(t, os.Remove(at("4", "record.json")))
	n.start()
	for chain, want := range map[string]bool{"sha256:1": true, "sha256:2": false, "sha256:3": false, "sha256:4": false} {
		if n.HasImage(chain) != want {
			t.Errorf("image %s known: %v", chain, !want)
		}
	}
	n.check(tr, tr.files[0])
	n.add("sha256:2", tr, "a")
	n.stop()
	n.start()
	if !n.HasImage("sha256:2") {
		t.Error("an image that was added again is gone")
	}
}
