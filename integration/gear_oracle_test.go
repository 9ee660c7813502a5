package integration

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
)

// TestGearOracle pushes images with every trap that layers can have and exports what the server
// made of them. It compares the exports with what containerd mounts for a container and with what
// umoci unpacks. Containerd is the judge, because Gear is specified to show what an overlay shows.
// Umoci unpacks into one directory; it has other rules in the cases that say so.
func TestGearOracle(t *testing.T) {
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	judge := &unpackers{t: t, containerd: daemon.StartContainerd(t), umoci: tool.System(t, "umoci"), env: tool.NewEnv(t.TempDir())}
	cases := nastyLayers(t)
	cases["debian"] = debianLayers(t)
	bySkopeo, byCrane := newSkopeo(t), newCrane(t)
	exports := map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			layers := cases[name]
			image := imagetest.Compose(runtime.GOARCH, nil, layers, imagetest.Gzip, imagetest.ZstdFrames, imagetest.Plain, imagetest.GzipMembers)
			ref := s.Addr + "/oracle/" + name + ":1"
			if i%2 == 0 {
				bySkopeo.copy(t, "oci:"+writeImage(t, image)+":t", "docker://"+ref)
			} else {
				byCrane.run(t, "push", writeImage(t, image), ref)
			}
			exported := s.Export("oracle/" + name + ":1")
			exports[name] = exported
			k := known[name]
			if described := describedDirs(t, layers); k.containerdFails == "" {
				expectSame(t, "containerd", judge.mount(t, ref), exported, described, k.containerd)
			} else if _, err := judge.containerd.Try(t.Context(), pullArgs(ref)...); err == nil {
				t.Errorf("containerd can pull it now, and should be compared; it was said that %s", k.containerdFails)
			}
			if k.byTar {
				expectSame(t, "tar", judge.extract(t, layers), exported, describedDirs(t, layers), nil)
				return
			}
			expectSame(t, "umoci", judge.unpack(t, layers), exported, describedDirs(t, layers), k.umoci)
		})
	}
	s.Run("settle", "--all")
	s.Run("fsck") // now, as the server mends what it finds damaged when it is read
	for name, before := range exports {
		expectSame(t, "the first export", before, s.Export("oracle/"+name+":1"), describedDirs(t, cases[name]), nil)
	}
	s.Alive()
	s.Stop()
	s.Run("fsck")
}

// expectSame fails the test for every difference that is not explained.
func expectSame(t *testing.T, who, want, got string, described map[string]bool, explained differences) {
	t.Helper()
	unused := maps.Clone(explained)
	lines, err := treecmp.Compare(want, got, &treecmp.Options{Ignore: func(path, aspect string) bool {
		if fi, err := os.Lstat(filepath.Join(got, path)); err == nil && fi.IsDir() && aspect == "mtime" && !described[path] {
			// Only Gear has a rule for the time of a directory that no layer describes.
			if path != "." && !fi.ModTime().Equal(time.Unix(0, 0)) {
				t.Errorf("%q, which no layer describes, has the time %s, want 0", path, fi.ModTime())
			}
			return true
		}
		if path == "." && aspect == "mtime" && who == "containerd" {
			return true // containerd never sets the time of the root; umoci does
		}
		_, ok := explained[path+" "+aspect]
		delete(unused, path+" "+aspect)
		return ok
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) > 0 {
		t.Errorf("%s has another tree, which the export is not:\n%s", who, strings.Join(lines, "\n"))
	}
	for d := range unused {
		t.Errorf("%s does not differ in what is explained: %q", who, d)
	}
}

// unpackers are the programs that Gear is compared with.
type unpackers struct {
	t          *testing.T // the mounts last until it ends
	containerd *daemon.Containerd
	umoci      string
	env        *tool.Env
}

// mount returns the tree of an image as containerd shows it to a container.
func (u *unpackers) mount(t *testing.T, ref string) string {
	t.Helper()
	dir := filepath.Join(u.t.TempDir(), "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	u.containerd.Run(t, pullArgs(ref)...)
	u.containerd.Run(t, "image", "mount", ref, dir)
	u.t.Cleanup(func() { blockfs.UnmountBelow(u.t, dir) })
	return dir
}

// layout writes an image of the layers, in the one compression that umoci supports.
func (u *unpackers) layout(t *testing.T, layers []imagetest.Layer) string {
	t.Helper()
	return writeImage(t, imagetest.Compose(runtime.GOARCH, nil, layers)) + ":t"
}

// unpack returns the tree of an image as umoci unpacks it.
func (u *unpackers) unpack(t *testing.T, layers []imagetest.Layer) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bundle")
	u.env.Run(t, u.umoci, "unpack", "--image", u.layout(t, layers), dir)
	return filepath.Join(dir, "rootfs")
}

// extract returns the tree of an image of one layer as GNU tar extracts it.
func (u *unpackers) extract(t *testing.T, layers []imagetest.Layer) string {
	t.Helper()
	if len(layers) != 1 {
		t.Fatalf("tar knows nothing of %d layers", len(layers))
	}
	dir := t.TempDir()
	archive := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(archive, layers[0].Tar, 0o600); err != nil {
		t.Fatal(err)
	}
	u.env.Run(t, tool.System(t, "tar"), "--extract", "--preserve-permissions", "--numeric-owner", "--file="+archive, "--directory="+dir)
	return dir
}

func pullArgs(ref string) []string { return []string{"image", "pull", "--plain-http", ref} }

// describedDirs returns the directories that have an entry of their own in some layer.
func describedDirs(t *testing.T, layers []imagetest.Layer) map[string]bool {
	t.Helper()
	dirs := map[string]bool{}
	for _, l := range layers {
		r := tar.NewReader(bytes.NewReader(l.Tar))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == tar.TypeDir {
				dirs[filepath.Join(".", filepath.Clean("/"+h.Name))] = true
			}
		}
	}
	return dirs
}

// debianLayers returns two layers of a real system: the packages that Debian needs to run, as
// installed on this machine, and what apt adds. It takes nothing from the network and nobody's
// private files; it holds only files of packages.
func debianLayers(t *testing.T) []imagetest.Layer {
	t.Helper()
	query := tool.System(t, "dpkg-query")
	env := tool.NewEnv(t.TempDir())
	essential := strings.Fields(env.Run(t, query, "--show", "--showformat=${Package} ${Essential}\n"))
	var packages []string
	for i := 0; i+1 < len(essential); i += 2 {
		if essential[i+1] == "yes" {
			packages = append(packages, essential[i])
		}
	}
	if len(packages) < 10 {
		t.Fatalf("Debian has more essential packages than %v", packages)
	}
	return []imagetest.Layer{packagesLayer(t, env, packages), packagesLayer(t, env, []string{"apt", "libc6", "libc-bin"})}
}

func packagesLayer(t *testing.T, env *tool.Env, packages []string) imagetest.Layer {
	t.Helper()
	list := env.Run(t, tool.System(t, "dpkg-query"), append([]string{"--listfiles"}, packages...)...)
	var paths []string
	for p := range strings.Lines(list) {
		p = strings.TrimSuffix(p, "\n")
		top, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		if !slices.Contains([]string{"bin", "lib", "lib64", "sbin", "usr"}, top) || strings.HasPrefix(p, "/usr/share/doc/") {
			continue // may change meanwhile, or adds nothing
		}
		if _, err := os.Lstat(p); err == nil { // otherwise dpkg was told to leave it out
			paths = append(paths, strings.TrimPrefix(p, "/"))
		}
	}
	slices.Sort(paths)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, tool.System(t, "tar"), "--create", "--blocking-factor=1", "--xattrs", "--format=posix", "--numeric-owner",
		"--no-recursion", "--directory=/", "--files-from=-")
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(slices.Compact(paths), "\n")), &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("tar: %v\n%s", err, said.Bytes())
	}
	return base().Raw(out.Bytes()).Layer()
}

// differences maps "path aspect" to the reason why the two sides differ.
type differences map[string]string

// known lists the cases in which an unpacker differs from the specification. Everything else must
// be equal.
var known = map[string]struct {
	containerd, umoci differences
	// containerdFails says why containerd cannot unpack the image.
	containerdFails string
	// byTar says that umoci cannot unpack it either, so tar is used instead.
	byTar bool
}{
	"attributes": {containerd: differences{
		"acls/plain system.posix_acl_access":      inherits,
		"acls/plain-dir system.posix_acl_access":  inherits,
		"acls/plain-dir system.posix_acl_default": inherits,
		"trusted trusted.mine":                    "containerd leaves trusted attributes out",
	}},
	"duplicates": {containerd: differences{
		"dir-file mtime": late,
		"f mtime":        late,
	}},
	"implied": {containerd: differences{
		"late mtime":    above,
		"special mtime": above,
	}},
	"links-below": {containerdFails: "a hard link to a lower layer has no target in the layer's own directory"},
	"links-overwritten": {umoci: differences{
		"m mtime": first,
		"n mtime": first,
	}},
	"sparse-gnu": {containerdFails: "GNU's own type of entry for files with holes is unknown to it", byTar: true},
	"symlinked-below": {umoci: differences{
		"lib type":         "umoci follows links of lower layers; in Gear, as in an overlay, a directory takes their place",
		"usr/lib/new path": "the same",
	}},
	"times": {containerd: differences{
		"d4 mtime": bound, "f4 mtime": bound, "l4 mtime": bound,
		"d5 mtime": bound, "f5 mtime": bound, "l5 mtime": bound,
		"d6 mtime": bound, "f6 mtime": bound, "l6 mtime": bound,
		"gnu-negative mtime": bound,
	}},
	"whiteouts": {containerd: differences{
		"back-dir/old path": "containerd lets a directory that follows its own whiteout take its place; a Gear directory is opaque then, as in umoci",
	}},
}

const (
	first    = "umoci leaves what is linked to alone; in Gear, as in containerd, the properties of the last entry hold"
	bound    = "containerd takes a time before 1970 for 1970"
	inherits = "unpacked into a directory with a default ACL; a Gear entry has what its own archive entry says"
	late     = "containerd sets the times of directories at the end, also where something else took their place, and through symbolic links"
	above    = "containerd makes the directory anew in the upper layer; in Gear the lower description holds"
)
