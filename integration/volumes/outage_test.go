package volumes_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
)

// reading starts a container that reads all of its image again and again. It returns a channel for
// what the container prints.
func (n *node) reading(p pushed, how ...string) <-chan string {
	said := make(chan string, 1)
	id := unique()
	go func() {
		out, err := n.RunContainer(n.t.Context(), p.ref, id, append([]string{"/bin/check"}, how...)...)
		said <- out + errorText(err)
	}()
	within(n.t, "a running container", func() error {
		out, err := n.Ctr(n.t.Context(), "task", "ls")
		if err == nil && !strings.Contains(out, id) {
			err = fmt.Errorf("not in %q", out)
		}
		return err
	})
	return said
}

// running is a node on which a container reads an image, with what it will print.
type running struct {
	*node
	way, want string
	before    ctrnode.Leftovers
	said      <-chan string
}

// both starts a node of each mode of volumes, with the image pulled.
func (b *bed) both(p pushed, change func(*ctrnode.Options)) []*running {
	b.t.Helper()
	var all []*running
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		n := b.node(way, change)
		all = append(all, &running{node: n, way: way, want: good(ofImage), before: n.leftovers()})
		n.pull(p)
		n.comes(p, asVolume)
	}
	return all
}

// TestOSDKilled kills the OSD under containers that read and write. If it is away for less than the
// bound, they notice nothing. If it is away for longer, they get errors, and never wrong bytes.
func TestOSDKilled(t *testing.T) {
	b := newBed(t, "both")
	p := b.push("team/app:v1", image(t, 9, 1))
	b.built(p, "ext4", "erofs")
	nodes := b.both(p, func(o *ctrnode.Options) { o.Only = true })
	for _, n := range nodes {
		args := []string{"for=4s"}
		if n.way == ctrnode.VolumeNetwork {
			args, n.want = append([]string{"write"}, args...), good(ofImage+8)
		}
		n.said = n.reading(p, args...)
	}
	forget(t)
	b.c.KillOSD()
	forget(t)
	time.Sleep(time.Second)
	if err := b.c.StartOSD(t.Context()); err != nil {
		t.Fatal(err)
	}
	forget(t)
	for _, n := range nodes {
		if got := await(t, n.said); got != n.want {
			t.Errorf("%s: with the OSD killed and back the container prints %q, want %q", n.way, got, n.want)
		}
		n.remove(n.before, p)
	}
	b.empty()
}

// TestOutage takes the storage away for longer than the bound. There must be EIO after the bound
// and not before, and everything must work when the storage is back.
func TestOutage(t *testing.T) {
	const bound = 3 * time.Second
	b := newBed(t, "erofs")
	p := b.push("team/app:v1", image(t, 10, 1))
	b.built(p, "erofs")
	n := b.node(ctrnode.VolumeLocal, func(o *ctrnode.Options) { o.Only, o.Outage = true, bound })
	before := n.leftovers()
	n.pull(p)
	n.comes(p, asVolume)
	n.shown(p, false, func(dir string) {
		if n, failed, wrong := verify(t, dir); n != ofImage || failed+wrong != 0 {
			t.Fatalf("of %d files %d fail and %d are wrong", n, failed, wrong)
		}
		forget(t)
		b.c.PauseOSD()
		defer b.c.ResumeOSD()
		began := time.Now()
		_, failed, wrong := verifyOne(t, dir)
		took := time.Since(began)
		if failed != 1 || wrong != 0 || took < bound-500*time.Millisecond || took > bound+20*time.Second {
			t.Errorf("with the storage away %d files fail and %d are wrong after %v, want one that fails after %v", failed, wrong, took, bound)
		}
		b.c.ResumeOSD()
		within(t, "whole files", func() error {
			if n, failed, wrong := verify(t, dir); n != ofImage || failed+wrong != 0 {
				return fmt.Errorf("of %d files %d fail and %d are wrong", n, failed, wrong)
			}
			return nil
		})
	})
	n.check(p, good(ofImage))
	n.remove(before, p)
	b.empty()
}

// TestMonitorAway kills the monitor under a container, and before a node starts.
func TestMonitorAway(t *testing.T) {
	b := newBed(t, "erofs")
	p := b.push("team/app:v1", image(t, 11, 1))
	b.built(p, "erofs")
	b.Converted()
	n := b.node(ctrnode.VolumeLocal, func(o *ctrnode.Options) { o.Only = true })
	late := b.node(ctrnode.VolumeLocal, nil)
	before, none := n.leftovers(), late.leftovers()
	n.pull(p)
	n.comes(p, asVolume)
	said := n.reading(p, "for=3s")
	b.c.KillMon()
	forget(t)
	fallsBack(t, late, p)
	if got := await(t, said); got != good(ofImage) {
		t.Errorf("without a monitor the container prints %q", got)
	}
	if err := b.c.StartMon(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.check(p, good(ofImage))
	n.remove(before, p)
	late.pull(p)
	late.check(p, good(ofImage))
	late.remove(none, p)
	b.empty()
}

// TestExpired removes the users that nodes got from the registry. Open volumes stay open,
// and more are opened over the same connection, because credentials are shared until half
// of their time is over. If the process of a node is killed as well, containers may get
// errors after the bound, but no wrong bytes. The agent finds that its users are refused
// and gets others, so that later containers work.
func TestExpired(t *testing.T) {
	b := newBed(t, "both")
	p, other := b.push("team/app:v1", image(t, 12, 1)), b.push("team/app:v2", image(t, 12, 2))
	for _, im := range []pushed{p, other} {
		b.built(im, "ext4", "erofs")
	}
	nodes := b.both(p, func(o *ctrnode.Options) { o.Only, o.Outage = true, 2*time.Second })
	for _, n := range nodes {
		n.said = n.reading(p, "for=1s")
	}
	if b.expire() == 0 {
		t.Error("the nodes had no users of the storage")
	}
	forget(t)
	for _, n := range nodes {
		if got := await(t, n.said); got != n.want {
			t.Errorf("%s: with its user gone the container prints %q", n.way, got)
		}
		n.check(p, n.want)
		n.pull(other)
		n.comes(other, asVolume)
		n.check(other, n.want)
	}

	for _, n := range nodes {
		n.said = n.reading(p, "for=2s")
	}
	b.expire()
	for _, n := range nodes {
		if !n.Kill(ctrnode.VolumeWorker) {
			t.Error("there is no volume worker")
		}
	}
	forget(t)
	for _, n := range nodes {
		got := await(t, n.said)
		if strings.Contains(got, "wrong=") && !strings.Contains(got, "wrong=0") {
			t.Errorf("%s: with its user and the volume worker gone the container prints %q", n.way, got)
		}
		t.Logf("%s: with its user and the volume worker gone the container prints %.100q", n.way, got)
	}
	for _, n := range nodes {
		within(t, n.way+": a container after that", func() error {
			out, err := n.RunContainer(t.Context(), p.ref, unique(), "/bin/check")
			if err == nil && out != n.want {
				err = fmt.Errorf("it prints %q", out)
			}
			return err
		})
		n.remove(n.before, p, other)
	}
	b.empty()
}

// expire removes the users that the registry made, and returns how many there were.
func (b *bed) expire() int {
	b.t.Helper()
	users, err := b.c.Users(b.t.Context(), "client.slipway-")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, u := range users {
		if err := b.c.RemoveUser(b.t.Context(), u); err != nil {
			b.t.Fatal(err)
		}
	}
	return len(users)
}

// await waits for a container's output.
func await(t testing.TB, said <-chan string) string {
	t.Helper()
	select {
	case out := <-said:
		return out
	case <-time.After(2 * patience):
		t.Fatal("the container does not end")
		return ""
	}
}
