package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestGearCommit changes a mounted image as a container would, commits the changes, and compares an
// export of the result with the mount.
func TestGearCommit(t *testing.T) {
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	pushed(t, s.Client, "team/base", "v1", imagetest.Compose(runtime.GOARCH, runConfig(), commitBase()))
	convert(t, s, "team/base:v1")
	for _, c := range []struct{ name, base, options string }{
		{"plain", "v1", "redirect_dir=off,metacopy=off,index=off"},
		{"on a Gear image", "v1-gear", "redirect_dir=off,metacopy=off,index=off"},
		{"redirected", "v1", "redirect_dir=on,metacopy=on,index=off"},
	} {
		t.Run(c.name, func(t *testing.T) { commitOne(t, s, c.base, c.options) })
	}
	s.Alive()
	s.Stop()
	s.Run("fsck")
}

// commitBase returns the layers of the image to be changed.
func commitBase() []imagetest.Layer {
	lower := base()
	for _, d := range []string{"keep", "gone", "renamed", "emptied", "opaque", "meta", "type"} {
		lower.Dir(d+"/").File(d+"/a", d+" a").File(d+"/b", d+" b").Dir(d+"/in/").File(d+"/in/c", d+" c")
	}
	lower.File("large", strings.Repeat("a large file of the base\n", 250_000)).File("gone-file", "x").
		File("moved-file", "moved").File("chmod", "only its mode changes").Symlink("link", "keep/a")
	return []imagetest.Layer{lower.Layer(), base().File("second", "layer").File("keep/a", "keep a, again").Layer()}
}

// overlay mounts a writable overlay over a directory. It returns the upper directory and the mount
// point.
func overlay(t *testing.T, lower, options string) (upper, merged string) {
	t.Helper()
	dir := t.TempDir()
	upper, work, merged := filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "merged")
	for _, d := range []string{upper, work, merged} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,%s", lower, upper, work, options)
	if err := unix.Mount("overlay", merged, "overlay", 0, data); err != nil {
		t.Fatalf("mount an overlay with %s: %v", data, err)
	}
	t.Cleanup(func() { blockfs.UnmountBelow(t, merged) })
	return upper, merged
}

// change changes a tree as containers do, and returns the contents that are new.
func change(t *testing.T, dir string) (fresh []string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) {
		fresh = append(fresh, content)
		check(t, os.WriteFile(at(name), []byte(content), 0o640))
	}
	write("new", "a new file of "+dir)
	write("keep/b", "changed in "+dir)
	write("new-large", strings.Repeat("new and large, in "+dir+"\n", 100_000))
	check(t, os.MkdirAll(at("fresh/deep/er"), 0o750))
	write("fresh/deep/er/file", "deep in "+dir)
	check(t, os.RemoveAll(at("gone")), os.Remove(at("gone-file")), os.Remove(at("emptied/a")), os.Remove(at("emptied/b")), os.RemoveAll(at("emptied/in")))
	// Removed and made again: opaque.
	check(t, os.RemoveAll(at("opaque")), os.Mkdir(at("opaque"), 0o755))
	write("opaque/b", "another b of "+dir)
	env := tool.NewEnv(t.TempDir())
	env.Run(t, tool.System(t, "mv"), at("renamed"), at("renamed-to"))
	env.Run(t, tool.System(t, "mv"), at("moved-file"), at("keep/moved-file"))
	check(t, os.Chmod(at("chmod"), 0o4711), os.Chmod(at("meta"), 0o1777), os.Lchown(at("meta/a"), 12, 34))
	// Entries change their type.
	check(t, os.Remove(at("type/a")), os.Mkdir(at("type/a"), 0o700), os.RemoveAll(at("type/in")))
	write("type/in", "no directory any more, in "+dir)
	check(t, os.Remove(at("link")), os.Symlink("nowhere", at("link")), os.Symlink("new", at("new-link")),
		os.Link(at("new"), at("fresh/hard")), unix.Mkfifo(at("fifo"), 0o600), unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Setxattr(at("keep/in/c"), "user.note", []byte("set on a lower file"), 0))
	// This repeats the content of a lower file, so it is not new.
	check(t, os.WriteFile(at("copied"), []byte("keep c"), 0o600), os.WriteFile(at("empty"), nil, 0o600))
	return fresh
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func commitOne(t *testing.T, s *slipway.Server, from, options string) {
	lower := s.Export("team/base:" + from)
	upper, merged := overlay(t, lower, options)
	fresh := change(t, merged)
	args := []string{"commit", upper, s.Addr + "/team/base:" + from}
	if strings.Contains(options, "redirect_dir=on") {
		args = append(args, "--merged="+merged)
	}
	files, sent := s.GearStatus().Files, uploadedBytes(t, s)
	out, err := slipway.Program(t.Context(), t, append(args, "changed")...)
	if err != nil {
		t.Fatal(err)
	}
	equalTrees(t, "what was committed", merged, s.Export("team/base:changed"))

	// The new contents are stored, with at most two indexes. The index of the changes is made here
	// and not kept; the index of the whole tree belongs to a layer.
	bytes := 0
	for _, c := range fresh {
		bytes += len(c)
	}
	if !strings.Contains(out, fmt.Sprintf("sent %d files of ", len(fresh))) {
		t.Errorf("commit says %q, want that it sent %d files", out, len(fresh))
	}
	if got := s.GearStatus().Files - files; got != int64(len(fresh))+1 {
		t.Errorf("the registry has %d contents more, want %d and an index", got, len(fresh))
	}
	if got := uploadedBytes(t, s) - sent; got <= 0 || got > int64(bytes)+64<<10 {
		t.Errorf("%d bytes of files were uploaded, want at most the %d of the new ones", got, bytes)
	}
	sent = uploadedBytes(t, s)
	out, err = slipway.Program(t.Context(), t, append(args, "changed-again")...)
	if err != nil {
		t.Fatal(err)
	}
	if got := uploadedBytes(t, s) - sent; got != 0 || !strings.Contains(out, "sent 0 files") {
		t.Errorf("the second time %d bytes were uploaded, and it says %q", got, out)
	}
	equalTrees(t, "what was committed again", merged, s.Export("team/base:changed-again"))

	if _, err := slipway.Program(t.Context(), t, append(args, "--layers", "layered")...); err != nil {
		t.Fatal(err)
	}
	equalTrees(t, "what was committed as a layer", merged, s.Export("team/base:layered"))
	layeredRuns(t, s, merged)
	for _, tag := range []string{"changed", "layered"} {
		_, _, config := image(t, s, "team/base", tag)
		b, err := json.Marshal(config["config"])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "GREETING=good day") || !strings.Contains(string(b), "--serve") {
			t.Errorf("the configuration of %s lacks that of its base: %s", tag, b)
		}
	}
	check(t, s.Client.DeleteManifest(t.Context(), "team/base", "changed"), s.Client.DeleteManifest(t.Context(), "team/base", "changed-again"))
}

// layeredRuns compares the mount with what containerd makes of an image that has the changes as an
// ordinary layer.
func layeredRuns(t *testing.T, s *slipway.Server, merged string) {
	t.Helper()
	c := daemon.StartContainerd(t)
	ref := s.Addr + "/team/base:layered"
	c.Run(t, pullArgs(ref)...)
	dir := t.TempDir()
	t.Cleanup(func() { blockfs.UnmountBelow(t, dir) })
	c.Run(t, "image", "mount", ref, dir)
	described := map[string]bool{}
	check(t, filepath.WalkDir(merged, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(merged, path) // path lies below merged
		described[rel] = true
		return err
	}))
	expectSame(t, "containerd", dir, merged, described, nil)
}

// uploadedBytes returns the number of bytes that clients have uploaded to the Gear extension since
// the server's start.
func uploadedBytes(t *testing.T, s *slipway.Server) int64 {
	t.Helper()
	resp := do(t, s.Client, http.MethodGet, "http://"+s.DebugAddr+"/metrics", nil, nil)
	var sum int64
	lines := bufio.NewScanner(strings.NewReader(string(resp.Body)))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if name != `registry_http_request_bytes_total{handler="gear_files"}` && name != `registry_http_request_bytes_total{handler="gear_file"}` {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += int64(n)
	}
	return sum
}
