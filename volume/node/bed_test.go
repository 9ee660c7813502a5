package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/node/fuse"
	"example.org/slipway/node/fusetest"
	"example.org/slipway/node/view"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
	"example.org/slipway/volume/volfs"
)

func TestMain(m *testing.M) {
	fusetest.Main(m, map[string]func() error{"storage": serveStorage, "manager": victim})
}

// role returns a process that ends with this one.
func role(name string, args ...string) *exec.Cmd {
	cmd := fusetest.Command(name, nil, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// bed is a place of volumes, the process that serves them, and what a Manager needs.
type bed struct {
	t                           testing.TB
	base, mnt, dir, state, sock string // dir: of the store, in the form that openStore takes
	records, run                string
	dev                         *os.File
	child                       *exec.Cmd // serves
	store                       block.Store
	log                         logtest.Buffer
	credential                  func(context.Context, bool) (volref.Credential, error) // of images made from now on
}

const patience = fusetest.Patience

func newBed(t testing.TB) *bed {
	t.Helper()
	return newBedAt(t, "")
}

// newBedAt is like newBed, for the volumes that openStore opens.
func newBedAt(t testing.TB, where string) *bed {
	t.Helper()
	fusetest.Need(t)
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, name) }
	b := &bed{t: t, base: base, mnt: in("mnt"), dir: in("store"), state: in("state"), sock: in("sock"), records: in("records"), run: in("run")}
	for _, d := range []string{b.mnt, b.dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if where != "" {
		b.dir = where
	}
	var err error
	if b.store, err = openStore(b.dir); err != nil {
		t.Fatal(err)
	}
	b.connect()
	t.Cleanup(b.end)
	return b
}

// connect mounts the files of volumes and starts their server.
func (b *bed) connect() {
	b.t.Helper()
	dev, err := volfs.Mount(b.mnt)
	if err != nil {
		b.t.Fatal(err)
	}
	b.dev = dev
	conn, err := fuse.Connection(dev)
	if err != nil {
		b.t.Fatal(err)
	}
	hang := time.AfterFunc(patience, func() { b.t.Error("the test hangs"); fuse.Abort(conn) })
	b.t.Cleanup(func() { hang.Stop() })
	b.serve()
}

func (b *bed) serve() {
	b.t.Helper()
	os.Remove(b.sock)
	b.child = role("storage", b.mnt, b.dir, b.state, b.sock)
	b.child.ExtraFiles = []*os.File{b.dev}
	if err := b.child.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the storage answers", func() bool {
		_, err := (&remote{b.sock}).Mapped(context.Background())
		return err == nil
	})
}

func (b *bed) kill() {
	b.child.Process.Kill()
	b.child.Wait()
}

// end removes everything, whatever hangs.
func (b *bed) end() {
	if err := view.UnmountBelow(b.run); err != nil {
		b.t.Error(err)
	}
	if err := fuse.Teardown(b.mnt); err != nil {
		b.t.Error(err)
	}
	b.dev.Close()
	b.kill()
	b.store.Close()
	if b.t.Failed() && b.log.String() != "" {
		b.t.Log(b.log.String())
	}
}

func (b *bed) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(15 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func (b *bed) options() node.Options {
	return node.Options{Dir: b.records, Run: b.run, Storage: &remote{b.sock}, Mapping: "fuse", Limits: node.Limits{Sweep: 100 * time.Millisecond},
		Log: slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
}

// open opens a Manager and closes it at the end of the test.
func (b *bed) open(change ...func(*node.Options)) *node.Manager {
	b.t.Helper()
	o := b.options()
	for _, f := range change {
		f(&o)
	}
	m, err := node.Open(context.Background(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return m
}

// image puts a tree into a committed volume. It uses the programs that make file systems, so that
// what is mounted was not made by our own code.
func (b *bed) image(name, fsType string, files map[string]string) node.Image {
	b.t.Helper()
	tree, img := filepath.Join(b.base, name+".tree"), filepath.Join(b.base, name+".img")
	for path, text := range files {
		path = filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	cmd := exec.Command("mkfs.erofs", img, tree)
	if fsType == volref.Ext4 {
		cmd = exec.Command("mkfs.ext4", "-q", "-O", "^has_journal", "-b", "4096", "-I", "256", "-d", tree, img, "32M")
	}
	if _, err := exec.LookPath(cmd.Args[0]); err != nil {
		b.t.Skip(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	b.commit("v-"+name, img)
	return b.imageOf("v-"+name, fsType)
}

func (b *bed) imageOf(volume, fsType string) node.Image {
	img := node.Image{Credential: b.credential, Record: volref.Record{Version: 1, Manifest: oci.Digest("sha256:" + strings.Repeat("ab", 32)), FS: fsType, Place: b.store.Place(),
		Layers: []volref.RecordLayer{{Digest: oci.Digest("sha256:" + strings.Repeat("cd", 32)), Volume: volume, Size: 4096}}}}
	return img
}

// commit puts the content of a sparse file into a committed volume.
func (b *bed) commit(id, path string) {
	b.t.Helper()
	ctx := context.Background()
	f, err := os.Open(path)
	ok(b.t, err)
	defer f.Close()
	st, err := f.Stat()
	ok(b.t, err)
	v, err := b.store.Create(ctx, id, "", (st.Size()+4095)&^4095)
	ok(b.t, err)
	for off := int64(0); off < st.Size(); {
		from, err := f.Seek(off, unix.SEEK_DATA)
		if err != nil {
			break // no more
		}
		if off, err = f.Seek(from, unix.SEEK_HOLE); err == nil {
			data := make([]byte, off-from)
			_, err = f.ReadAt(data, from)
			ok(b.t, err)
			_, err = v.WriteAt(data, from)
		}
		ok(b.t, err)
	}
	ok(b.t, errors.Join(v.Flush(), v.Close(), b.store.Commit(ctx, id)))
}

// counts holds the numbers of things that may leak.
type counts struct{ Mounts, Loops, Mapped, Clones, Records, Dirs int }

func (b *bed) counts() counts {
	b.t.Helper()
	var c counts
	mounts, err := view.Mounts(b.run)
	if err != nil {
		b.t.Fatal(err)
	}
	c.Mounts = len(mounts)
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if text, _ := os.ReadFile(f); strings.HasPrefix(string(text), b.mnt+"/") {
			c.Loops++
		}
	}
	c.Mapped = len(b.mappings())
	clones, err := b.store.List(context.Background(), "c-")
	if err != nil {
		b.t.Fatal(err)
	}
	c.Clones = len(clones)
	records, _ := filepath.Glob(b.records + "/*.json*")
	dirs, _ := filepath.Glob(b.run + "/*")
	c.Records, c.Dirs = len(records), len(dirs)
	return c
}

func (b *bed) mappings() []string {
	b.t.Helper()
	names, err := (&remote{b.sock}).Mapped(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return names
}

// nothing waits until nothing is left. Loop devices disappear after their users.
func (b *bed) nothing() {
	b.t.Helper()
	var c counts
	for range 1000 {
		if c = b.counts(); c == (counts{}) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.t.Fatalf("left: %+v", c)
}

func (b *bed) want(dir, path, text string) {
	b.t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil || string(got) != text {
		b.t.Fatalf("%s: got %.40q, %v, want %.40q", path, got, err, text)
	}
}

// noCredential is for storage that the test's service opens itself.
func noCredential(context.Context, *volref.Record, string, bool) (volref.Credential, error) {
	return volref.Credential{}, nil
}

// victim plays the role "manager": it opens a Manager, does one thing and kills itself after a step
// of it.
func victim() error {
	var v struct {
		Records, Run, Sock, Do, Key, ID, Kill string
		Stop                                  int // process to be stopped at Kill, instead of this one killed
		Image                                 volref.Record
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &v); err != nil {
		return err
	}
	armed := false
	o := node.Options{Dir: v.Records, Run: v.Run, Storage: &remote{v.Sock}, Mapping: "fuse", Limits: node.Limits{Late: -1}}
	o.SetStep(func(step string) {
		if armed && step == v.Kill && v.Stop != 0 {
			syscall.Kill(v.Stop, syscall.SIGSTOP)
		} else if armed && step == v.Kill {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	o.Credential = noCredential
	ctx := context.Background()
	m, err := node.Open(ctx, o)
	if err != nil {
		return err
	}
	armed = true
	switch img := (node.Image{Record: v.Image}); v.Do {
	case "local":
		_, err = m.Local(ctx, img)
	case "network":
		_, err = m.Network(ctx, v.Key, img)
	case "drop local":
		err = m.DropLocal(ctx, img.Record.Volume())
	case "drop network":
		err = m.DropNetwork(ctx, v.Key)
	case "commit":
		err = m.Commit(ctx, v.Key, v.ID)
	}
	if err != nil {
		return err
	}
	return m.Close()
}

// killedAt runs a victim and reports whether it was killed.
func (b *bed) killedAt(do, step, key, id string, img node.Image) bool {
	b.t.Helper()
	arg, err := json.Marshal(map[string]any{"Records": b.records, "Run": b.run, "Sock": b.sock, "Do": do, "Kill": step, "Key": key, "ID": id, "Image": img.Record})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := role("manager", string(arg))
	err = cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		return true
	}
	if err != nil {
		b.t.Fatalf("%s up to %s: %v", do, step, err)
	}
	return false
}
