package agent_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
	"example.org/slipway/integration/internal/wire"
)

// name is containerd's name for the agent.
const name = "slipway"

// withContainerd returns an agent and a containerd that uses it.
func withContainerd(t testing.TB, config string) (*node.Agent, *daemon.Containerd) {
	t.Helper()
	a := node.Start(t, config)
	return a, daemon.StartContainerd(t, daemon.Proxy{Name: name, Address: a.Socket()})
}

func pull(t testing.TB, c *daemon.Containerd, ref string) {
	t.Helper()
	c.Run(t, "image", "pull", "--plain-http", "--snapshotter", name, ref)
}

// reconnected waits until containerd calls an agent that has come back. If containerd tried
// meanwhile, as its collector does by itself, it answers every call with that failure for about a
// second before it tries again.
func reconnected(t testing.TB, c *daemon.Containerd) {
	t.Helper()
	proc.Poll(t, 30*time.Second, "containerd's connection to the agent", func() bool {
		_, err := c.Try(t.Context(), "snapshots", "--snapshotter", name, "ls")
		return err == nil
	})
}

// unique turns a container's name into a name that no runc of another containerd has.
func unique(id string) string { return fmt.Sprintf("%s-%016x", id, rand.Uint64()) }

func run(t testing.TB, c *daemon.Containerd, ref, id string, args ...string) string {
	t.Helper()
	return c.Run(t, append([]string{"run", "--rm", "--snapshotter", name, ref, unique(id), "/bin/check"}, args...)...)
}

// layers returns how many layers of an image lie in containerd's content store.
func layers(t testing.TB, c *daemon.Containerd, im *imagetest.Bundle) (n int) {
	t.Helper()
	return layersIn(t, c, "default", im)
}

// layersIn does the same in a namespace of containerd.
func layersIn(t testing.TB, c *daemon.Containerd, namespace string, im *imagetest.Bundle) (n int) {
	t.Helper()
	have := c.Run(t, "-n", namespace, "content", "ls", "-q")
	for _, b := range im.Blobs {
		if b.MediaType == imagetest.TypeLayerGz && strings.Contains(have, b.Digest) {
			n++
		}
	}
	return n
}

// trees compares what containers of an image see with the agent and with overlayfs. Both have
// pulled the image; chain is its chain ID.
func trees(t testing.TB, c *daemon.Containerd, chain string) {
	t.Helper()
	shell := tool.System(t, "sh")
	at := map[string]string{}
	for _, sn := range []string{name, "overlayfs"} {
		dir := filepath.Join(t.TempDir(), sn)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		var mount string
		proc.Poll(t, 30*time.Second, "a view that is not collected", func() bool {
			var err error
			mount, err = c.Try(t.Context(), "snapshots", "--snapshotter", sn, "view", "--target", dir, "shown", chain)
			// Nothing refers to it yet, so a garbage collection, such as a pull causes, may take
			// it.
			_, labelled := c.Try(t.Context(), "snapshots", "--snapshotter", sn, "label", "shown", "containerd.io/gc.root=test")
			return err == nil && labelled == nil
		})
		defer func() {
			blockfs.UnmountBelow(t, dir)
			c.Run(t, "snapshots", "--snapshotter", sn, "rm", "shown")
		}()
		tool.NewEnv(t.TempDir()).Run(t, shell, "-c", mount)
		at[sn] = dir
	}
	// If no layer describes the root, its time is that of unpacking.
	lines, err := treecmp.Compare(at["overlayfs"], at[name], &treecmp.Options{Ignore: func(path, aspect string) bool { return path == "." && aspect == "mtime" }})
	if err != nil || len(lines) > 0 {
		t.Errorf("what containers see is another tree than overlayfs has, error %v:\n%s", err, strings.Join(lines, "\n"))
	}
}

// treesOf does what trees does for an image that overlayfs has not pulled yet.
func treesOf(t testing.TB, c *daemon.Containerd, ref string, im *imagetest.Bundle) {
	t.Helper()
	c.Run(t, "image", "pull", "--plain-http", "--snapshotter", "overlayfs", ref)
	trees(t, c, chain(t, im))
}

// chain returns the chain ID of an image.
func chain(t testing.TB, im *imagetest.Bundle) (id string) {
	t.Helper()
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(im.Blobs[len(im.Blobs)-1].Data, &config); err != nil {
		t.Fatal(err)
	}
	for _, d := range config.RootFS.DiffIDs {
		if id == "" {
			id = d
		} else {
			id = wire.Digest([]byte(id + " " + d))
		}
	}
	return id
}

// TestContainerd pulls, runs and removes an image.
func TestContainerd(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	im := image(t, 1, files)
	ref := push(t, s, "team/app:v1", im)
	a, c := withContainerd(t, quiet)
	pull(t, c, ref)
	if n := layers(t, c, im); n != 0 {
		t.Errorf("%d layers were pulled, want none", n)
	}
	if got, want := run(t, c, ref, "one", "one"), good(files/2); got != want {
		t.Errorf("the container prints %q, want %q", got, want)
	}
	if img := a.Image(); img.LocalFiles != files/2+1 {
		t.Errorf("%d files were fetched for a container that opens %d", img.LocalFiles, files/2+1)
	}
	for _, id := range []string{"two", "three"} {
		if got := run(t, c, ref, id); got != good(files) {
			t.Errorf("the container prints %q, want %q", got, good(files))
		}
	}
	kept := unique("kept")
	c.Run(t, "run", "--snapshotter", name, ref, kept, "/bin/check", "write=something")
	if n := layers(t, c, im); n != 0 {
		t.Errorf("%d layers came with the containers, want none", n)
	}
	c.Run(t, "container", "rm", kept)
	treesOf(t, c, ref, im)
	c.Run(t, "image", "rm", "--sync", ref)
	clean(t, a)
}

// TestOtherImages runs images that cannot be started lazily as a whole, and Gear images.
func TestOtherImages(t *testing.T) {
	const files = 20
	s := slipway.Start(t, t.TempDir(), nil)
	im := image(t, 1, files)
	ref := push(t, s, "team/app:v1", im)
	if out, err := slipway.Command(t, "convert", ref); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	middle := im.Blobs[1].Digest
	unknown := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"BLOB_UNKNOWN","message":"no index"}]}`))
	}
	for _, w := range []struct {
		name, tag string
		how       fault
		pulled    int
	}{
		{"a layer without an index", "v1", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if strings.Contains(r.URL.Path, middle) {
				unknown(w)
				return
			}
			pass.ServeHTTP(w, r)
		}, 2},
		{"a registry without Gear", "v1", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			http.Error(w, "404 page not found", http.StatusNotFound)
		}, 3},
		{"an index of other bytes", "v1", func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			if strings.Contains(r.URL.Path, "/gear/layers/"+middle) {
				w = &flipped{ResponseWriter: w}
			}
			pass.ServeHTTP(w, r)
		}, 2},
		{"a Gear image", "v1-gear", nil, 0},
	} {
		t.Run(w.name, func(t *testing.T) {
			g := behind(t, s)
			g.set(w.how)
			a, c := withContainerd(t, quiet)
			ref := g.ref(strings.TrimSuffix(ref, "v1") + w.tag)
			pull(t, c, ref)
			if n := layers(t, c, im); n != w.pulled {
				t.Errorf("%d layers were pulled, want %d", n, w.pulled)
			}
			if got := run(t, c, ref, "one"); got != good(files) {
				t.Errorf("the container prints %q, want %q", got, good(files))
			}
			if w.how != nil {
				treesOf(t, c, ref, im)
			}
			c.Run(t, "image", "rm", "--sync", ref)
			clean(t, a)
		})
	}
}

// TestDocker makes dockerd keep its images with the agent.
func TestDocker(t *testing.T) {
	const files = 20
	s := slipway.Start(t, t.TempDir(), nil)
	im := image(t, 1, files)
	ref := push(t, s, "team/app:v1", im)
	_, c := withContainerd(t, quiet)
	d := daemon.StartMobyOn(t, c.Socket(), name)
	d.Run(t, "pull", "-q", ref)
	if n := layers(t, c, im); n != 0 {
		t.Errorf("%d layers were pulled, want none", n)
	}
	if got := d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", ref); got != good(files) {
		t.Errorf("the container prints %q, want %q", got, good(files))
	}
	d.Run(t, "run", "--name", "writer", "--network", "none", "--pull", "never", ref, "write=kept")
	if got := d.Run(t, "diff", "writer"); got != "A /written" {
		t.Errorf("docker diff says %q", got)
	}
	d.Run(t, "commit", "writer", "committed")
	if got := d.Run(t, "run", "--rm", "--network", "none", "--pull", "never", "--entrypoint", "/bin/check", "committed", "written"); got != "kept <nil>" {
		t.Errorf("the committed image prints %q", got)
	}
	d.Run(t, "rm", "writer")
	d.Run(t, "rmi", "--force", "committed", ref)
}
