package client_test

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
)

func gearName(content string) [32]byte { return sha256.Sum256([]byte(content)) }

// container mounts an overlay over a directory and changes it as a container may.
func container(t testing.TB, lower string) (upper, merged string) {
	t.Helper()
	top := t.TempDir()
	upper, merged = filepath.Join(top, "upper"), filepath.Join(top, "merged")
	work := filepath.Join(top, "work")
	must(t, os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755), os.Mkdir(merged, 0o755))
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		t.Fatalf("mount an overlay, which this test needs: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(merged, 0)) })
	m := func(path string) string { return filepath.Join(merged, path) }
	must(t,
		os.WriteFile(m("etc/motd"), []byte("changed"), 0o600),
		os.Remove(m("etc/motd2")),
		os.RemoveAll(m("old")), os.Mkdir(m("old"), 0o700), os.WriteFile(m("old/only"), []byte("only"), 0o644),
		os.RemoveAll(m("opt")),
		os.WriteFile(m("usr/large3"), []byte(noise(9, 4<<20+17)), 0o644),
		os.WriteFile(m("usr/small"), []byte(noise(8, 70_000)), 0o755), os.Link(m("usr/small"), m("bin/small")),
		os.WriteFile(m("usr/known"), []byte("hello"), 0o644), // the base has this content
		os.Symlink("nowhere", m("usr/link")), os.Chown(m("usr/bin/su"), 1, 2), os.Chmod(m("usr/bin/su"), 0o2711),
		unix.Mkfifo(m("tmp/fifo"), 0o600),
	)
	return upper, merged
}

// TestCommit checks that the base and the changes together give what the container saw.
func TestCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	layers := original(t)
	b.pushImage("team/app", "v1", "linux/amd64", layers)
	base := b.image("team/app", "v1")
	_, err := b.Convert(t.Context(), "team/app", "v1", gearclient.ConvertOptions{})
	must(t, err)
	upper, merged := container(t, unpack(t, layers))
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	digests := map[oci.Digest]bool{}
	for i, from := range []*gearclient.Image{base, b.image("team/app", "v1-gear")} {
		sent := 0
		o := gearclient.CommitOptions{Tag: "v2", Author: "me", Comment: "why", Created: at, Progress: func(files int, _ int64) { sent = files }}
		p, err := b.Commit(t.Context(), upper, from, o)
		must(t, err)
		// changed, only, large3 and small are sent; what the base has is not, and nothing
		// is sent twice.
		if want := []int{4, 0}[i]; sent != want {
			t.Errorf("base %s: %d files were sent, want %d", from.Ref, sent, want)
		}
		img := b.image("team/app", "v2")
		if p.Digest != img.Manifest.Digest || !img.Gear || img.Original != "" {
			t.Errorf("base %s: pushed %+v, found %+v", from.Ref, p, img)
		}
		wantTree(t, merged, b.export(img))
		var cfg struct {
			Author, Created string
			History         []map[string]string
			Config          struct{ Env []string }
		}
		must(t, json.Unmarshal(img.Config, &cfg))
		if cfg.Author != "me" || cfg.Created != "2024-05-06T07:08:09Z" || len(cfg.History) != 1 || cfg.History[0]["comment"] != "why" || len(cfg.Config.Env) != 1 {
			t.Errorf("got the configuration %s", img.Config)
		}
		if !strings.Contains(string(img.Manifest.Bytes), string(from.Manifest.Digest)) {
			t.Errorf("the manifest does not name its base: %s", img.Manifest.Bytes)
		}
		digests[p.Digest] = true
	}
	if len(digests) != 2 { // the images name different bases
		t.Errorf("got %d images of two bases", len(digests))
	}

	// A commit may have a commit as its base, and may go into a repository that has none
	// of the files.
	p, err := b.Commit(t.Context(), t.TempDir(), b.image("team/app", "v2"), gearclient.CommitOptions{Repo: "else/where", Tag: "v3"})
	must(t, err)
	img := b.image("else/where", "v3")
	if img.Manifest.Digest != p.Digest {
		t.Errorf("got %s, want %s", img.Manifest.Digest, p.Digest)
	}
	wantTree(t, merged, b.export(img))
	if _, err := b.CommitLayer(t.Context(), t.TempDir(), img, gearclient.CommitOptions{Tag: "v4"}); err == nil || !strings.Contains(err.Error(), "no layers") {
		t.Errorf("a layer on an image without: got %v", err)
	}
}

// TestCommitLayer commits to an ordinary image, which gets one more layer.
func TestCommitLayer(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	layers := original(t)
	b.pushImage("team/app", "v1", "linux/amd64", layers)
	_, err := b.Convert(t.Context(), "team/app", "v1", gearclient.ConvertOptions{})
	must(t, err)
	upper, merged := container(t, unpack(t, layers))
	at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	digests := map[oci.Digest]bool{}
	for _, tt := range []struct{ base, repo string }{{"v1", ""}, {"v1-gear", ""}, {"v1", "else/where"}} {
		p, err := b.CommitLayer(t.Context(), upper, b.image("team/app", tt.base), gearclient.CommitOptions{Repo: tt.repo, Tag: "v2", Created: at})
		must(t, err)
		img := b.image(p.Repo, "v2")
		if img.Gear || len(img.Layers) != 4 || len(img.DiffIDs) != 4 || img.Manifest.Digest != p.Digest {
			t.Errorf("%v: got %d layers and %d diff IDs", tt, len(img.Layers), len(img.DiffIDs))
		}
		var cfg struct{ History []struct{ Created_By string } }
		must(t, json.Unmarshal(img.Config, &cfg))
		if n := len(cfg.History); n != 2 || cfg.History[1].Created_By != "slipway commit" {
			t.Errorf("%v: got the configuration %s", tt, img.Config)
		}
		wantTree(t, merged, b.export(img)) // the registry makes the index of the new layer
		digests[img.Layers[3].Digest] = true
	}
	if len(digests) != 1 {
		t.Errorf("got %d different layers of one directory", len(digests))
	}
}

// TestCommitRefuses checks that a refused commit leaves no tag.
func TestCommitRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	b := newBed(t)
	b.pushImage("app", "v1", "linux/amd64", original(t))
	base := b.image("app", "v1")
	upper := t.TempDir()
	must(t, os.WriteFile(filepath.Join(upper, ".wh.x"), nil, 0o644))
	for name, tt := range map[string]struct {
		dir  string
		o    gearclient.CommitOptions
		want string
	}{
		"a name that is a whiteout":     {upper, gearclient.CommitOptions{Tag: "v2"}, "whiteouts"},
		"a directory that is not there": {upper + "/none", gearclient.CommitOptions{Tag: "v2"}, "no such file"},
		"no tag":                        {t.TempDir(), gearclient.CommitOptions{}, "TAG_INVALID"},
		"no repository":                 {t.TempDir(), gearclient.CommitOptions{Repo: "A", Tag: "v2"}, "NAME_INVALID"},
	} {
		for how, commit := range map[string]func() (gearclient.Pushed, error){
			"gear":   func() (gearclient.Pushed, error) { return b.Commit(t.Context(), tt.dir, base, tt.o) },
			"layers": func() (gearclient.Pushed, error) { return b.CommitLayer(t.Context(), tt.dir, base, tt.o) },
		} {
			if _, err := commit(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s, %s: got %v, want %q", name, how, err, tt.want)
			}
		}
	}
	if _, err := b.One(t.Context(), "app", "v2", nil); !oci.HasCode(err, oci.CodeManifestUnknown) {
		t.Errorf("v2: got %v", err)
	}
}
