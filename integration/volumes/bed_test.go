package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// patience bounds everything that does not wait for the storage.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.cluster != nil {
		if err := errors.Join(shared.cluster.Stop(), os.RemoveAll(shared.cluster.Dir)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// shared is the cluster of all tests.
var shared struct {
	start   sync.Once
	cluster *ceph.Cluster
	err     error
}

// cluster returns the shared cluster. It starts the cluster for the first test.
func cluster(t testing.TB) *ceph.Cluster {
	t.Helper()
	tool.NeedRoot(t)
	if name := ceph.Missing(); name != "" {
		t.Skipf("tool not installed: %s (scripts/setup.sh test installs it)", name)
	}
	shared.start.Do(func() {
		dir, err := os.MkdirTemp("/tmp", "cephv")
		if err != nil {
			shared.err = err
			return
		}
		shared.cluster, shared.err = ceph.Start(context.Background(), dir, nil)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// bed is a registry with volumes in its own namespaces.
type bed struct {
	*slipway.Server
	t          testing.TB
	c          *ceph.Cluster
	ns, clones string
	binary     string
	conf       string // the nodes' configuration of the cluster
}

var serial atomic.Int64

// newBed starts a registry that builds volumes of the given file systems: "both" or one.
func newBed(t testing.TB, fs string) *bed {
	t.Helper()
	c := cluster(t)
	for _, name := range []string{"containerd", "ctr", "containerd-shim-runc-v2", "runc"} {
		tool.Built(t, name)
	}
	binary := slipway.RBDBinary(t)
	if err := os.Setenv("SLIPWAY_BIN", binary); err != nil { // for the registry
		t.Fatal(err)
	}
	b := &bed{t: t, c: c, binary: binary}
	n := serial.Add(1)
	b.ns, b.clones = fmt.Sprintf("images%d", n), fmt.Sprintf("clones%d", n)
	for _, ns := range []string{b.ns, b.clones} {
		if err := c.AddNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if b.conf, err = c.ClientConf(""); err != nil {
		t.Fatal(err)
	}
	o := ctrnode.RegistryOptions{Dir: t.TempDir(), Ceph: c.Conf, User: "admin", Keyring: filepath.Join(c.Dir, "keyring"), Pool: c.Pool, Namespace: b.ns, Clones: b.clones, FS: fs}
	access, err := o.Access()
	if err != nil {
		t.Fatal(err)
	}
	b.Server = slipway.Start(t, t.TempDir(), &slipway.Options{Config: "version: 0.1\nlog: {level: info, accesslog: {disabled: true}}\nstorage: {delete: {enabled: true}}\n" + access + o.Volumes()})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.log())
		}
	})
	return b
}

// pushed is an image in the registry.
type pushed struct {
	ref, repo, digest string
	bundle            *imagetest.Bundle
}

// push pushes an image, "repository:tag", without waiting for its volumes.
func (b *bed) push(name string, im *imagetest.Bundle) pushed {
	b.t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	if err := im.Push(b.t.Context(), b.Client, repo, tag); err != nil {
		b.t.Fatal(err)
	}
	return pushed{b.Addr + "/" + name, repo, im.Top.Digest, im}
}

// built waits for an image's volumes.
func (b *bed) built(p pushed, fs ...string) *ctrnode.VolumeStatus {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	st, err := ctrnode.AwaitBuilt(ctx, func(ctx context.Context) (*ctrnode.VolumeStatus, error) {
		return ctrnode.Volumes(ctx, b.Addr, p.repo, p.digest)
	}, fs...)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.log())
	}
	return st
}

// node starts a node on this machine's network. It ends with the test.
func (b *bed) node(way string, change func(*ctrnode.Options)) *node {
	b.t.Helper()
	o := ctrnode.Options{Dir: filepath.Join(tool.ShortTempDir(b.t), "n"), Binary: b.binary, Way: way, Registries: []string{b.Addr}, Ceph: b.conf}
	if change != nil {
		change(&o)
	}
	n, err := ctrnode.Start(b.t.Context(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Log(n.Logs())
		}
		if err := n.Stop(); err != nil {
			b.t.Error(err)
		}
	})
	return &node{n, b.t}
}

// node is a node whose failures fail a test.
type node struct {
	*ctrnode.Node
	t testing.TB
}

func (n *node) pull(p pushed) {
	n.t.Helper()
	if err := n.Pull(n.t.Context(), p.ref); err != nil {
		n.t.Fatalf("%v\n%s", err, n.Logs())
	}
}

// check runs a container, which must print want.
func (n *node) check(p pushed, want string, args ...string) {
	n.t.Helper()
	out, err := n.RunContainer(n.t.Context(), p.ref, unique(), append([]string{"/bin/check"}, args...)...)
	if err != nil || out != want {
		n.t.Errorf("the container prints %q, error %v; want %q", out, err, want)
	}
}

// explain returns what the agent says of an image.
func (n *node) explain(p pushed) string {
	n.t.Helper()
	out, err := n.Slipway(n.t.Context(), "agent", "explain", p.ref)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// comes fails the test unless the agent says that an image comes in the given way, and says it with
// the words.
func (n *node) comes(p pushed, way string, words ...string) {
	n.t.Helper()
	said := n.explain(p)
	for _, w := range append([]string{way}, words...) {
		if !strings.Contains(strings.ToLower(said), w) {
			n.t.Errorf("the agent does not say %q of the image:\n%s", w, said)
		}
	}
}

// volume is how explain begins if an image comes as a volume. gear and plain are its words for the
// other ways.
const (
	asVolume = "volume"
	asGear   = "gear: used"
	asPlain  = "plain: used"
)

// remove removes images and waits until the node holds only what it held before.
func (n *node) remove(before ctrnode.Leftovers, images ...pushed) {
	n.t.Helper()
	for _, p := range images {
		if err := n.Remove(n.t.Context(), p.ref); err != nil {
			n.t.Error(err)
		}
	}
	n.gone(before)
}

func (n *node) leftovers() ctrnode.Leftovers {
	n.t.Helper()
	l, err := n.Leftovers()
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// empty waits until the namespace of clones has no image, and nobody has any of the volumes open.
func (b *bed) empty() {
	b.t.Helper()
	within(b.t, "a cluster without leftovers", func() error {
		ctx := b.t.Context()
		images, err := b.c.Images(ctx, b.clones)
		if err != nil {
			return err
		}
		var trash, watchers []string
		for _, ns := range []string{b.ns, b.clones} {
			put, err := b.c.Trash(ctx, ns)
			if err != nil {
				return err
			}
			open, err := b.c.Watchers(ctx, ns)
			if err != nil {
				return err
			}
			trash, watchers = append(trash, put...), append(watchers, open...)
		}
		if len(images)+len(trash)+len(watchers) > 0 {
			return fmt.Errorf("clones %q, trash %q, watchers %q", images, trash, watchers)
		}
		return nil
	})
}

// images returns the volumes in the cluster.
func (b *bed) images() []string {
	b.t.Helper()
	list, err := b.c.Images(b.t.Context(), b.ns)
	if err != nil {
		b.t.Fatal(err)
	}
	return list
}

// within repeats try until it returns no error. What a killed client leaves may stay until the
// cluster has noticed, and until whoever removes it has tried again after that. So the limit is
// three times patience.
func within(t testing.TB, what string, try func() error) {
	t.Helper()
	const long = 3 * patience
	var err error
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Errorf("%s: not within %s: %v", what, long, err)
}

// unique returns a container's name that no other containerd's runc has.
func unique() string { return fmt.Sprintf("v-%016x", rand.Uint64()) }

// forget makes the kernel drop what it has read from disks and servers.
func forget(t testing.TB) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
}

// log returns the end of the registry's output, or after a crash the beginning of the crash report.
func (b *bed) log() string {
	text := b.Process.Log(1 << 20)
	for _, crash := range []string{"panic:", "fatal error:", "SIGSEGV"} {
		if i := strings.Index(text, crash); i >= 0 {
			return text[i:min(len(text), i+4096)]
		}
	}
	return text[max(0, len(text)-4096):]
}
