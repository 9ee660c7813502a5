package volumes_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
)

// verify reads every file below dir/files, as the program does.
func verify(t testing.TB, dir string) (files, failed, wrong int) {
	t.Helper()
	return read(t, dir, false)
}

// verifyOne is like verify, but stops at the first file that cannot be read.
func verifyOne(t testing.TB, dir string) (files, failed, wrong int) {
	t.Helper()
	return read(t, dir, true)
}

var errEnough = errors.New("enough")

func read(t testing.TB, dir string, one bool) (files, failed, wrong int) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "files"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return nil
		}
		files++
		var b []byte
		if err == nil {
			b, err = os.ReadFile(path)
		}
		if err != nil {
			if failed++; one {
				return errEnough
			}
			return nil
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != d.Name() {
			wrong++
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return files, failed, wrong
}

// gone waits until a node holds only what it held before.
func (n *node) gone(before ctrnode.Leftovers) {
	n.t.Helper()
	within(n.t, "a node without leftovers", func() error {
		after, err := n.Leftovers()
		if err == nil && !after.Equal(before) {
			err = fmt.Errorf("left %s; before %s", after, before)
		}
		return err
	})
}

// TestClonesInUse removes an image from the registry while a container on a node has a clone of it.
// Its volumes must stay that long.
func TestClonesInUse(t *testing.T) {
	t.Parallel()
	b := newBed(t, "ext4")
	p := b.push("team/app:v1", image(t, 13, 1))
	b.built(p, "ext4")
	n := b.node(ctrnode.VolumeNetwork, func(o *ctrnode.Options) { o.Only = true })
	before := n.leftovers()
	n.pull(p)
	n.comes(p, asVolume)
	said := n.reading(p, "for=5s")
	if err := b.Client.DeleteManifest(t.Context(), p.repo, p.digest); err != nil {
		t.Fatal(err)
	}
	b.collect()
	forget(t)
	if got := await(t, said); got != good(ofImage) {
		t.Errorf("with its image gone from the registry the container prints %q", got)
	}
	n.remove(before, p)
	b.empty()
	within(t, "a cluster without volumes", func() error {
		b.collect()
		if list := b.images(); len(list) != 0 {
			return fmt.Errorf("left %q", list)
		}
		return nil
	})
}

// collect makes the registry look for volumes that nobody needs.
func (b *bed) collect() {
	b.t.Helper()
	b.Run("gc", "--now")
}

// TestReboot restarts a node whose containers have volumes. The existing containers can be started
// again, with what they wrote.
func TestReboot(t *testing.T) {
	t.Parallel()
	b := newBed(t, "both")
	p := b.push("team/app:v1", image(t, 14, 1))
	b.built(p, "ext4", "erofs")
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		t.Run(way, func(t *testing.T) {
			n := b.node(way, func(o *ctrnode.Options) { o.Only = true })
			before := n.leftovers()
			n.pull(p)
			n.comes(p, asVolume)
			kept := unique()
			if out, err := n.Ctr(t.Context(), "run", "--snapshotter", n.Snapshotter(), p.ref, kept, "/bin/check", "write"); err != nil || out != good(ofImage+8) {
				t.Fatalf("the container prints %q, error %v", out, err)
			}
			if err := n.Reboot(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.check(p, good(ofImage))
			out, err := n.Ctr(t.Context(), "task", "start", kept)
			if want := good(ofImage + 16); err != nil || out != want { // the container writes eight more
				t.Errorf("after a reboot the container prints %q, error %v, want %q", out, err, want)
			}
			if _, err := n.Ctr(t.Context(), "container", "rm", kept); err != nil {
				t.Error(err)
			}
			n.remove(before, p)
		})
	}
	b.empty()
}

// TestKilled kills each of the agent's processes at different moments of a pull and a run.
func TestKilled(t *testing.T) {
	t.Parallel()
	b := newBed(t, "both")
	p := b.push("team/app:v1", image(t, 15, 1))
	b.built(p, "ext4", "erofs")
	for _, way := range []string{ctrnode.VolumeLocal, ctrnode.VolumeNetwork} {
		t.Run(way, func(t *testing.T) {
			n := b.node(way, nil)
			before := n.leftovers()
			for i, which := range []string{ctrnode.VolumeWorker, ctrnode.Worker, ctrnode.VolumeWorker, ctrnode.Worker, "all"} {
				done := make(chan error, 1)
				go func() {
					err := n.Pull(t.Context(), p.ref)
					if err == nil {
						_, err = n.RunContainer(t.Context(), p.ref, unique(), "/bin/check")
					}
					done <- err
				}()
				time.Sleep(time.Duration(40+90*i) * time.Millisecond)
				if which == "all" {
					if err := n.KillAgent(); err != nil {
						t.Fatal(err)
					}
					if err := n.StartAgent(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					n.Kill(which)
				}
				if err := <-done; err != nil { // containerd's call was interrupted: the caller tries again
					t.Logf("with the %s killed: %.300s", which, err)
				}
				within(t, "a container after the kill", func() error {
					if err := n.Pull(t.Context(), p.ref); err != nil {
						return err
					}
					out, err := n.RunContainer(t.Context(), p.ref, unique(), "/bin/check")
					if err == nil && out != good(ofImage) {
						t.Errorf("after a kill of the %s the container prints %q", which, out)
					}
					return err
				})
				n.remove(before, p)
			}
		})
	}
	b.empty()
}
