package chain_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/export"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/internal/mounttest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/chain"
	"example.org/slipway/volume/file"
)

func TestMain(m *testing.M) { mounttest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// recording is a store that knows where its volumes were written.
type recording struct {
	block.Store
	mu      sync.Mutex
	written map[string][]block.Extent // by ID
}

func (r *recording) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	v, err := r.Store.Create(ctx, id, parent, size)
	return &recordingVolume{v, r, id}, err
}

func (r *recording) OpenWriter(ctx context.Context, id string) (block.Volume, error) {
	v, err := r.Store.OpenWriter(ctx, id)
	return &recordingVolume{v, r, id}, err
}

type recordingVolume struct {
	block.Volume
	r  *recording
	id string
}

func (v *recordingVolume) note(off, n int64) {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	v.r.written[v.id] = append(v.r.written[v.id], block.Extent{Off: off, Len: n})
}

func (v *recordingVolume) WriteAt(p []byte, off int64) (int, error) {
	v.note(off, int64(len(p)))
	return v.Volume.WriteAt(p, off)
}

func (v *recordingVolume) Zero(off, n int64) error {
	v.note(off, n)
	return v.Volume.Zero(off, n)
}

func store(t testing.TB) *recording {
	t.Helper()
	s, err := file.Open(t.TempDir(), nil)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &recording{Store: s, written: map[string][]block.Extent{}}
}

func built(t testing.TB, s block.Store, im *blocktest.Image, o *block.BuildOptions) *volref.Record {
	t.Helper()
	rec, err := chain.Build(t.Context(), s, im.Layers, im.Source, o)
	must(t, err)
	blocktest.WantRecord(t, s, rec)
	return rec
}

// wantWhole checks that a store has n volumes and that all of them are complete.
func wantWhole(t *testing.T, s block.Store, n int) {
	t.Helper()
	infos, err := s.List(t.Context(), "")
	must(t, err)
	for _, i := range infos {
		if !i.Committed {
			t.Errorf("left: %+v", i)
		}
	}
	if len(infos) != n {
		t.Errorf("%d volumes, want %d", len(infos), n)
	}
}

// contentOf writes a volume to a sparse file.
func contentOf(t *testing.T, s *recording, id string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "volume")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	v, err := s.Open(t.Context(), id)
	must(t, err)
	defer v.Close()
	must(t, f.Truncate(v.Size()))
	for at := id; at != ""; {
		for _, x := range s.written[at] {
			// The read goes through the top volume: what a layer above changed is read from there.
			_, err := io.Copy(io.NewOffsetWriter(f, x.Off), io.NewSectionReader(v, x.Off, x.Len))
			must(t, err)
		}
		info, err := s.Stat(t.Context(), at)
		must(t, err)
		at = info.Parent
	}
	return path
}

// sumOf returns a sum over the nonzero blocks of a volume and their places. Reading everything
// would take a minute, because most of a device is free.
func sumOf(t *testing.T, s *recording, id string) string {
	t.Helper()
	f, err := os.Open(contentOf(t, s, id))
	must(t, err)
	defer f.Close()
	h, b, zeros := sha256.New(), make([]byte, block.BlockSize), make([]byte, block.BlockSize)
	for end := int64(0); ; {
		at, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("%x", h.Sum(nil))
		}
		must(t, err)
		end, err = unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
		must(t, err)
		for ; at < end; at += block.BlockSize {
			_, err := f.ReadAt(b, at)
			must(t, err)
			if !bytes.Equal(b, zeros) {
				fmt.Fprintf(h, "%d %x\n", at, sha256.Sum256(b))
			}
		}
	}
}

// described describes the content of a directory by path.
func described(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, dir)
		if err != nil || name == "" || name == "/lost+found" {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		what := fmt.Sprintf("%o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec)
		switch {
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d %d bytes %x", st.Nlink, len(b), sha256.Sum256(b))
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " " + to
		}
		out[name] = what
		return nil
	}))
	return out
}

// TestMounted checks that every volume mounts as the tree of its layers.
func TestMounted(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	for _, fsys := range []string{volref.Ext4, volref.EROFS} {
		s, im := store(t), blocktest.NewImage(t, 5, 3)
		rec := built(t, s, im, &block.BuildOptions{FS: fsys})
		for i, l := range rec.Layers {
			if l.Volume == "" {
				continue
			}
			var indexes []*gear.Index
			for _, l := range im.Layers[:i+1] {
				indexes = append(indexes, l.Index)
			}
			x, err := gear.Flatten(indexes...)
			must(t, err)
			plain := filepath.Join(t.TempDir(), "plain")
			must(t, export.Tree(t.Context(), x, im.Source, plain, nil))
			dir := t.TempDir()
			out, err := exec.Command("mount", "-t", fsys, "-o", "ro,loop", contentOf(t, s, l.Volume), dir).CombinedOutput()
			if err != nil {
				t.Fatalf("mount %s of layer %d: %v\n%s", fsys, i, err, out)
			}
			if diff := cmp.Diff(described(t, plain), described(t, dir)); diff != "" {
				t.Errorf("%s, layer %d: -plain +volume\n%s", fsys, i, diff)
			}
			must(t, unix.Unmount(dir, 0))
		}
	}
}

// TestSame checks that two independent builders build the same.
func TestSame(t *testing.T) {
	t.Parallel()
	for _, fsys := range []string{volref.Ext4, volref.EROFS} {
		o := &block.BuildOptions{FS: fsys}
		one, two := store(t), store(t)
		a, b := built(t, one, blocktest.NewImage(t, 6, 4), o), built(t, two, blocktest.NewImage(t, 6, 4), o)
		a.Place, b.Place = volref.Place{}, volref.Place{}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("records: -one +two\n%s", diff)
		}
		if sumOf(t, one, a.Volume()) != sumOf(t, two, b.Volume()) {
			t.Errorf("%s: the volumes differ", fsys)
		}
		sum := int64(0)
		for _, l := range a.Layers {
			sum += l.Used
		}
		t.Logf("%s: device of %d MiB, %d KiB in %d layers", fsys, a.Layers[3].Size>>20, sum>>10, len(a.Layers))
	}
}

// TestUnsupported checks that an image which cannot be a volume is refused before anything is
// written.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]rootfs.Entry{
		"whiteout":  {Path: "d/null", Type: rootfs.CharDevice, Mode: 0o600},
		"attribute": {Path: "d", Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "trusted.overlay.opaque", Value: "y"}}},
		"too large": {Path: "d", Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "user.x", Value: strings.Repeat("x", 60_000)}}},
	} {
		b := gear.NewBuilder(nil)
		must(t, b.Add(e, gear.File{}))
		x, err := b.Index()
		must(t, err)
		s, im := store(t), blocktest.NewImage(t, 1, 2)
		im.Layers = append(im.Layers, block.Layer{Digest: oci.SHA256([]byte(name)), Index: x})
		_, err = chain.Build(t.Context(), s, im.Layers, im.Source, nil)
		var unsupported *volref.UnsupportedError
		if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), e.Path) {
			t.Errorf("%s: got error %v", name, err)
		}
		wantWhole(t, s, 0)
	}
	_, err := chain.Build(t.Context(), store(t), nil, nil, nil)
	var unsupported *volref.UnsupportedError
	if !errors.As(err, &unsupported) {
		t.Errorf("no layers: got error %v", err)
	}
}

// TestUnsupportedBelow checks that unsupported content which a layer above removes is no obstacle.
// The image without that layer is refused although its volume exists.
func TestUnsupportedBelow(t *testing.T) {
	t.Parallel()
	s, im := store(t), blocktest.NewImage(t, 1, 0)
	for _, e := range []rootfs.Entry{
		{Path: "d/null", Type: rootfs.CharDevice, Mode: 0o600},
		{Path: "d/null", Type: rootfs.Whiteout},
	} {
		b := gear.NewBuilder(nil)
		must(t, b.Add(e, gear.File{}))
		x, err := b.Index()
		must(t, err)
		im.Layers = append(im.Layers, block.Layer{Digest: oci.SHA256(fmt.Append(nil, e.Type)), Index: x})
	}
	built(t, s, im, nil)
	var unsupported *volref.UnsupportedError
	if _, err := chain.Build(t.Context(), s, im.Layers[:1], im.Source, nil); !errors.As(err, &unsupported) {
		t.Errorf("got error %v", err)
	}
}

// overtaken is a store in which another builder takes over a volume just before it becomes durable,
// and completes it.
type overtaken struct {
	block.Store
	finish func()
}

func (o *overtaken) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	v, err := o.Store.Create(ctx, id, parent, size)
	return &overtakenVolume{v, o.finish}, err
}

type overtakenVolume struct {
	block.Volume
	finish func()
}

func (v *overtakenVolume) Flush() error {
	err := v.Close()
	v.finish()
	return errors.Join(block.ErrAway, err)
}

// TestOvertaken checks that a builder which was thought dead leaves alone what another one has
// completed.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	s, im := store(t), blocktest.NewImage(t, 11, 1)
	var rec *volref.Record
	o := &overtaken{s, func() { rec = built(t, s, blocktest.NewImage(t, 11, 1), nil) }}
	if _, err := chain.Build(t.Context(), o, im.Layers, im.Source, nil); !errors.Is(err, block.ErrAway) {
		t.Errorf("got error %v", err)
	}
	blocktest.WantRecord(t, s, rec)
	wantWhole(t, s, 1)
}

// TestBreaksOff checks that an interrupted build leaves only whole volumes, at any point, and that
// the next build continues from there.
func TestBreaksOff(t *testing.T) {
	t.Parallel()
	s := store(t)
	failure := errors.New("the source fails")
	for _, at := range []int{1, 4, 11, 14} { // the second layer begins at the 10th
		im, n := blocktest.NewImage(t, 7, 3), 0
		im.Source.Before = func(context.Context, gear.File) error {
			if n++; n == at {
				return failure
			}
			return nil
		}
		if _, err := chain.Build(t.Context(), s, im.Layers, im.Source, nil); !errors.Is(err, failure) {
			t.Fatalf("at %d: got error %v", at, err)
		}
		infos, err := s.List(t.Context(), "")
		must(t, err)
		wantWhole(t, s, len(infos))
	}
	ctx, cancel := context.WithCancel(t.Context())
	im := blocktest.NewImage(t, 7, 3)
	im.Source.Before = func(context.Context, gear.File) error { cancel(); return nil }
	if _, err := chain.Build(ctx, s, im.Layers, im.Source, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got error %v", err)
	}
	damaged := blocktest.NewImage(t, 7, 3)
	damaged.Source.Damage(4000)
	if _, err := chain.Build(t.Context(), s, damaged.Layers, damaged.Source, nil); err == nil || !strings.Contains(err.Error(), "do not match its name") {
		t.Errorf("damaged contents: got error %v", err)
	}
	whole := built(t, s, blocktest.NewImage(t, 7, 3), nil)
	wantWhole(t, s, 3)
	other := store(t)
	if sumOf(t, s, whole.Volume()) != sumOf(t, other, built(t, other, blocktest.NewImage(t, 7, 3), nil).Volume()) {
		t.Error("built in pieces, it differs")
	}
}

// TestFromBelow checks that contents of the layers below are not fetched again.
func TestFromBelow(t *testing.T) {
	t.Parallel()
	s := store(t)
	two := blocktest.NewImage(t, 8, 2)
	built(t, s, two, nil)
	three := blocktest.NewImage(t, 8, 3)
	built(t, s, three, nil)
	if _, n, most := three.Source.Counts(); n != 8 || most != 1 { // its own files, "same"
		t.Errorf("the third layer took %d contents", n)
	}
}

// TestWaits checks that a build waits for what another builder writes, as long as ctx allows.
func TestWaits(t *testing.T) {
	t.Parallel()
	s, im := store(t), blocktest.NewImage(t, 9, 2)
	bottom := volref.VolumeName(volref.Ext4, []oci.Digest{im.Layers[0].Digest})
	v, err := s.Create(t.Context(), bottom, "", 1<<20)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	o := &block.BuildOptions{Progress: func(p block.Progress) {
		if p.Waiting && p.Volume == bottom {
			cancel()
		}
	}}
	if _, err := chain.Build(ctx, s, im.Layers, im.Source, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	if n, _, _ := im.Source.Counts(); n != 0 {
		t.Errorf("%d fetches for a volume of somebody else", n)
	}
	// The builder of the volume is gone, and had written other content under that name.
	must(t, v.Close())
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	rec, err := chain.Build(ctx, s, im.Layers, im.Source, nil)
	must(t, err)
	blocktest.WantRecord(t, s, rec)
	wantWhole(t, s, 2)
}

// keeping is a store that removes nothing.
type keeping struct{ block.Store }

func (keeping) Remove(context.Context, string) error { return block.ErrDenied }

// TestNotRemoved checks that a build does not wait for ever for a volume that it may not remove.
func TestNotRemoved(t *testing.T) {
	t.Parallel()
	s, im := store(t), blocktest.NewImage(t, 9, 1)
	v, err := s.Create(t.Context(), volref.VolumeName(volref.Ext4, []oci.Digest{im.Layers[0].Digest}), "", 1<<20)
	must(t, err)
	must(t, v.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := chain.Build(ctx, keeping{s}, im.Layers, im.Source, nil); !errors.Is(err, block.ErrDenied) {
		t.Errorf("got error %v", err)
	}
}

// removing is a store that removes the volumes below when one above is created.
type removing struct {
	block.Store
	id    string
	times int
}

func (r *removing) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	if parent == r.id && r.times > 0 {
		r.times--
		if err := r.Remove(ctx, parent); err != nil {
			return nil, err
		}
	}
	return r.Store.Create(ctx, id, parent, size)
}

// TestRemovedBelow checks that a volume which is collected during a build is made again.
func TestRemovedBelow(t *testing.T) {
	t.Parallel()
	im := blocktest.NewImage(t, 10, 2)
	bottom := volref.VolumeName(volref.Ext4, []oci.Digest{im.Layers[0].Digest})
	s := &removing{store(t), bottom, 2}
	built(t, s, im, nil)
	wantWhole(t, s, 2)
	s = &removing{store(t), bottom, 100}
	if _, err := chain.Build(t.Context(), s, im.Layers, im.Source, nil); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("got error %v", err)
	}
}
