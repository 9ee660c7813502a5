package volumes_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
)

// fallsBack pulls an image that a node cannot have as a volume. The image must come in another way,
// with the reason reported, and be whole.
func fallsBack(t *testing.T, n *node, p pushed, words ...string) {
	t.Helper()
	before := n.leftovers()
	began := time.Now()
	n.pull(p)
	if took := time.Since(began); took > 45*time.Second {
		t.Errorf("the pull took %v", took)
	}
	n.comes(p, asGear, append([]string{"volume:"}, words...)...)
	n.check(p, good(ofImage))
	n.remove(before, p)
}

// TestMissing removes volumes behind the registry's back.
func TestMissing(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ext4")
	p := b.push("team/app:v1", image(t, 3, 1))
	st := b.built(p, "ext4")
	b.Converted()
	top := b.ns + "/" + st.Records[0].Volume()
	for _, args := range [][]string{
		{"snap", "unprotect"}, {"--no-progress", "snap", "purge"}, {"--no-progress", "rm"},
	} {
		spec := b.c.Pool + "/" + top
		if args[len(args)-1] == "unprotect" {
			spec += "@slipway"
		}
		_, err := b.c.Run(t.Context(), "rbd", append(args, spec)...)
		if err != nil && !strings.Contains(err.Error(), "not protected") {
			t.Fatal(err)
		}
	}
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		fallsBack(t, b.node(way, nil), p, "no such volume")
	}
	b.empty()
}

// TestOtherPlace moves the volumes of a registry to another place. The registry must not
// send nodes to a place for which it has no credentials. A node uses the monitors of the
// credential and not those of its own configuration.
func TestOtherPlace(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ext4")
	p := b.push("team/app:v1", image(t, 4, 1))
	b.built(p, "ext4")
	b.Converted()
	other, err := b.c.ClientConf("11111111-2222-3333-4444-555555555555")
	if err != nil {
		t.Fatal(err)
	}
	n := b.node(ctrnode.VolumeLocal, func(o *ctrnode.Options) { o.Ceph = other })
	before := n.leftovers()
	n.pull(p)
	n.comes(p, asVolume)
	n.check(p, good(ofImage))
	n.remove(before, p)

	b.Stop()
	moved := b.ns + "moved"
	if err := b.c.AddNamespace(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	reg, err := ctrnode.StartRegistry(t.Context(), ctrnode.RegistryOptions{Dir: t.TempDir(), Root: b.Root, Binary: b.binary, Addr: b.Addr, FS: "ext4",
		Ceph: b.c.Conf, User: "admin", Keyring: filepath.Join(b.c.Dir, "keyring"), Pool: b.c.Pool, Namespace: moved, Clones: b.clones})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	}()
	st, err := reg.Volumes(t.Context(), p.repo, p.digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range st.Records {
		if r.Place.Namespace != moved {
			t.Errorf("a record of %s is served, and the volumes are in %s", r.Place.Namespace, moved)
		}
	}
	t.Logf("in another place: %s, %d records, %q", st.State, len(st.Records), st.Reason)
	n.pull(p)
	n.check(p, good(ofImage))
	n.remove(before, p)
	b.empty()
}

// TestHalfBuilt kills the registry again and again while it builds. A node that pulls meanwhile
// gets the image in another way. At the end the image must be built, and whole.
func TestHalfBuilt(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ext4")
	p := b.push("team/app:v1", image(t, 5, 1))
	n := b.node(ctrnode.VolumeLocal, nil)
	for i := range 5 {
		time.Sleep(time.Duration(50+100*i) * time.Millisecond)
		b.Kill()
		b.Restart()
	}
	b.Converted()
	fallback := n.leftovers()
	n.pull(p)
	n.check(p, good(ofImage))
	n.remove(fallback, p)
	b.built(p, "ext4")
	if got := len(b.images()); got != 3 {
		t.Errorf("%d volumes of an image of three layers: %q", got, b.images())
	}
	n.pull(p)
	n.comes(p, asVolume)
	n.check(p, good(ofImage))
	n.remove(fallback, p)
	b.empty()
}

// TestUnprotected removes the protection from the snapshot on which the next layer is built.
func TestUnprotected(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ext4")
	st := b.built(b.push("team/app:v1", image(t, 6, 1)), "ext4")
	for _, l := range st.Records[0].Layers {
		_, err := b.c.Run(t.Context(), "rbd", "snap", "unprotect", b.c.Pool+"/"+b.ns+"/"+l.Volume+"@slipway")
		if err != nil && !strings.Contains(err.Error(), "not protected") && !strings.Contains(err.Error(), "children") && !strings.Contains(err.Error(), "busy") {
			t.Fatal(err)
		}
	}
	p := b.push("team/app:v2", image(t, 6, 2))
	b.built(p, "ext4")
	n := b.node(ctrnode.VolumeNetwork, nil)
	before := n.leftovers()
	n.pull(p)
	n.comes(p, asVolume)
	n.check(p, good(ofImage+8), "write")
	n.remove(before, p)
	b.empty()
}

// TestNoLoop takes the loop devices away from the agent. EROFS volumes need none; a writable clone
// does.
func TestNoLoop(t *testing.T) {
	t.Parallel()
	b := newBed(t, "both")
	p := b.push("team/app:v1", image(t, 7, 1))
	b.built(p, "ext4", "erofs")
	b.Converted()
	without := []string{"unshare", "--mount", "--propagation", "unchanged", "sh", "-c",
		"mount --make-private /dev && mount --bind /dev/null /dev/loop-control && exec \"$@\"", "sh"}
	// Everybody must see the agent's mounts, and nobody those of /dev.
	alone := func(o *ctrnode.Options) {
		o.Before = without
		if err := errors.Join(os.Mkdir(o.Dir, 0o700), syscall.Mount(o.Dir, o.Dir, "", syscall.MS_BIND, ""), syscall.Mount("", o.Dir, "", syscall.MS_SHARED, "")); err != nil {
			t.Fatal(err)
		}
	}
	local := b.node(ctrnode.VolumeLocal, alone)
	before := local.leftovers()
	local.pull(p)
	local.comes(p, asVolume)
	local.check(p, good(ofImage))
	local.remove(before, p)

	network := b.node(ctrnode.VolumeNetwork, alone)
	before = network.leftovers()
	network.pull(p)
	out, err := network.RunContainer(t.Context(), p.ref, unique(), "/bin/check")
	if err == nil && out != good(ofImage) || err != nil && !strings.Contains(err.Error(), "loop") {
		t.Errorf("without loop devices the container prints %q, error %v; want %q or an error about them", out, err, good(ofImage))
	}
	network.remove(before, p)
	b.empty()
}

// TestFull makes the cluster full while an image is built, and while a container writes.
func TestFull(t *testing.T) {
	b := newBed(t, "ext4")
	first := b.push("team/app:v1", image(t, 8, 1))
	b.built(first, "ext4")
	b.Converted()
	n := b.node(ctrnode.VolumeNetwork, func(o *ctrnode.Options) { o.Outage = 3 * time.Second })
	before := n.leftovers()
	n.pull(first)
	n.comes(first, asVolume)
	writing := make(chan string, 1)
	id := unique()
	go func() {
		out, err := n.RunContainer(t.Context(), first.ref, id, "/bin/check", "hold")
		writing <- out + errorText(err)
	}()
	if err := b.c.SetFull(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	second := b.push("team/app:v2", image(t, 8, 2))
	out, err := n.Ctr(t.Context(), "task", "exec", "--exec-id", "w", id, "/bin/check", "write")
	if err == nil && (strings.Contains(out, "wrong=0") == strings.Contains(out, "failed=0")) {
		t.Errorf("a container that writes to a full cluster prints %q", out)
	}
	time.Sleep(2 * time.Second)
	st, err := ctrnode.Volumes(t.Context(), b.Addr, second.repo, second.digest)
	if err != nil || len(st.Records) != 0 {
		t.Errorf("a full cluster has %d records, error %v", len(st.Records), err)
	}
	t.Logf("while the cluster is full: %s, %q; the container says %q", st.State, st.Reason, out)
	if err := b.c.SetFull(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	// The registry would try again by itself after half a minute.
	if _, err := b.Client.Do(t.Context(), "POST", "/v2/"+second.repo+"/_slipway/volumes/"+second.digest, nil, []byte(`{"fs":"ext4"}`)); err != nil {
		t.Fatal(err)
	}
	b.built(second, "ext4")
	if _, err := n.Ctr(t.Context(), "task", "kill", "-s", "KILL", id); err != nil {
		t.Error(err)
	}
	<-writing
	n.pull(second)
	n.check(second, good(ofImage+8), "write")
	n.remove(before, first, second)
	b.empty()
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
