package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
)

// TestMountHangs checks that a mount(2) that waits for storage blocks nobody else, and ends when
// the storage is back.
func TestMountHangs(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img, other := b.image("a", volref.Ext4, tree), b.image("b", volref.EROFS, tree)
	stopped := make(chan struct{})
	m := b.open(func(o *node.Options) {
		o.SetStep(func(step string) {
			if step == "attach" { // only ext4 has this step
				b.child.Process.Signal(syscall.SIGSTOP)
				close(stopped)
			}
		})
	})
	dir, err := m.Local(ctx, other)
	ok(t, err)
	result := make(chan error, 1)
	go func() {
		_, err := m.Local(ctx, img)
		result <- err
	}()
	<-stopped
	b.want(dir, "etc/motd", "hello\n")
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := m.Local(short, img); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it hangs: %v", err)
	}
	if err := m.DropLocal(short, "v-a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drop while it hangs: %v", err)
	}
	if d, err := m.Local(ctx, other); err != nil || d != dir {
		t.Errorf("the other: %q, %v", d, err)
	}
	st, err := m.Status(ctx)
	ok(t, err)
	for _, v := range st.Volumes {
		if want := map[string]string{"v-a": "busy", "v-b": "mounted"}[v.Volume]; v.State != want {
			t.Errorf("volume %s is %s, want %s", v.Volume, v.State, want)
		}
	}
	b.child.Process.Signal(syscall.SIGCONT)
	ok(t, <-result)
	d, err := m.Local(ctx, img)
	ok(t, err)
	b.want(d, "bin/tool", tree["bin/tool"])
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropLocal(ctx, "v-b")))
	b.nothing()
}

// TestKilledWhileMountHangs kills a process while it mounts. The mount may appear after its
// successor has started.
func TestKilledWhileMountHangs(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	arg, err := json.Marshal(map[string]any{"Records": b.records, "Run": b.run, "Sock": b.sock, "Do": "local", "Stop": b.child.Process.Pid, "Kill": "attach", "Image": img.Record})
	ok(t, err)
	victim := role("manager", string(arg))
	ok(t, victim.Start())
	time.Sleep(300 * time.Millisecond) // it hangs in mount(2), or has not got there yet
	victim.Process.Kill()
	opened := make(chan *node.Manager)
	go func() { opened <- b.open() }()
	time.Sleep(100 * time.Millisecond)
	b.child.Process.Signal(syscall.SIGCONT)
	m := <-opened
	victim.Wait()
	m.Sweep()
	b.nothing()
	dir, err := m.Local(ctx, img)
	ok(t, err)
	b.want(dir, "etc/motd", "hello\n")
	ok(t, m.DropLocal(ctx, "v-a"))
	b.nothing()
}

// lateStorage makes clones after it reported that it did not.
type lateStorage struct {
	*remote
	asked, came *atomic.Int32
}

func (s lateStorage) Clone(ctx context.Context, p volref.Place, c volref.Credential, id, parent string) error {
	s.asked.Add(1)
	time.AfterFunc(200*time.Millisecond, func() {
		if s.remote.Clone(context.Background(), p, c, id, parent) == nil {
			s.came.Add(1)
		}
	})
	return block.ErrAway
}

func TestLateClone(t *testing.T) {
	t.Parallel()
	b, ctx := newBed(t), context.Background()
	img := b.image("a", volref.Ext4, tree)
	var asked, came atomic.Int32
	m := b.open(func(o *node.Options) {
		o.Storage, o.Limits.Call = lateStorage{&remote{b.sock}, &asked, &came}, 2*time.Second
		o.Limits.Late = time.Nanosecond
	})
	for range 2 {
		if _, err := m.Network(ctx, "c", img); !errors.Is(err, block.ErrAway) {
			t.Fatalf("got %v, want %v", err, block.ErrAway)
		}
	}
	ok(t, m.DropNetwork(ctx, "c"))
	// They may be removed as soon as they exist.
	b.eventually("the clones come", func() bool { return came.Load() > 0 && came.Load() == asked.Load() })
	b.nothing()
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"phase":"made","image":{},"volume":"v-a","tries":1,"mount":{"dir":"/x"}}`))
	f.Add([]byte(`{"version":1,"phase":"leaving","key":"c","clone":"c-1","volume":"v-a"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) { node.ParseRecord(b) })
}

func FuzzDevices(f *testing.F) {
	f.Add([]byte(`[{"id":"0","pool":"rbd","namespace":"","name":"a","snap":"-","device":"/dev/rbd0"}]`))
	f.Add([]byte(`[{"id":7,"pool":"rbd","namespace":"n","image":"a","snap":"slipway","device":"/dev/nbd0"}]`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) { node.ParseDevices(b) })
}
