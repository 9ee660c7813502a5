package integration

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// client is one of the programs that people push and pull with, reduced to what the common test
// needs. References have the form "host:port/repository:tag".
type client struct {
	// push pushes the image; it first loads it into the client if the client needs that.
	push func(t *testing.T, im *imagetest.Image, ref string)
	// pull pulls a reference that the client does not hold locally.
	pull func(t *testing.T, ref string)
	// output runs the pulled image, or reads it back, and returns what its program prints.
	output func(t *testing.T, ref string) string
	// forget deletes the local copy.
	forget func(t *testing.T, ref string)
	// remove deletes the image in the registry. It is nil if the client has no command for that;
	// the test then deletes it with a plain request.
	remove func(t *testing.T, ref string)
	// pullFailing pulls a reference that does not exist and returns what the
	// client says.
	pullFailing func(t *testing.T, ref string) string
	// mediaType is the manifest type the client must push; empty for any.
	mediaType string
}

// testClient takes an image through its life with one client. It also crosses the client with
// skopeo at both ends: skopeo pulls what the client pushes, and the client pulls what skopeo
// pushes.
func testClient(t *testing.T, c client) {
	s := slipway.Start(t, t.TempDir(), nil)
	im := imagetest.Hello(t)
	const repo = "team/app/hello" // three segments: not every client has always allowed that
	ref := s.Addr + "/" + repo + ":v1"

	pushed := t.Run("push", func(t *testing.T) {
		c.push(t, im, ref)
		m, err := s.Client.CheckImage(t.Context(), repo, "v1")
		if err != nil {
			t.Fatal(err)
		}
		if c.mediaType != "" && m.MediaType != c.mediaType {
			t.Errorf("manifest is %s, want %s", m.MediaType, c.mediaType)
		}
		other := newSkopeo(t)
		other.pull(t, ref)
		digest, output := other.read(t, ref)
		if digest != m.Digest || output != im.Output {
			t.Errorf("skopeo pulled %s that prints %q, want %s and %q", digest, output, m.Digest, im.Output)
		}
	})
	if !pushed {
		return // the rest would only fail for the same reason
	}
	t.Run("pull", func(t *testing.T) {
		c.forget(t, ref)
		c.pull(t, ref)
		if got := c.output(t, ref); got != im.Output {
			t.Errorf("the pulled image prints %q, want %q", got, im.Output)
		}
	})
	t.Run("pull what another pushed", func(t *testing.T) {
		other := newSkopeo(t)
		ref := s.Addr + "/library/by-skopeo:v2"
		other.push(t, im, ref)
		c.pull(t, ref)
		if got := c.output(t, ref); got != im.Output {
			t.Errorf("the image that skopeo pushed prints %q, want %q", got, im.Output)
		}
	})
	t.Run("delete", func(t *testing.T) {
		if c.remove != nil {
			c.remove(t, ref)
		} else {
			removeImage(t, s.Client, repo, "v1")
		}
		if _, err := s.Client.GetManifest(t.Context(), repo, "v1"); wire.StatusOf(err) != http.StatusNotFound {
			t.Errorf("after the deletion: %v, want status 404", err)
		}
		c.forget(t, ref)
		said := strings.ToLower(c.pullFailing(t, ref))
		if !strings.Contains(said, "not found") && !strings.Contains(said, "unknown") && !strings.Contains(said, "404") {
			t.Errorf("a pull of a deleted image says:\n%s\nwant it to say that the image does not exist", said)
		}
	})
	s.Alive()
	s.Stop()
	s.Run("fsck")
}

// removeImage deletes the manifest that a tag names, by its digest. It serves clients that have no
// command for this.
func removeImage(t *testing.T, c *wire.Client, repo, tag string) {
	t.Helper()
	m, err := c.GetManifest(t.Context(), repo, tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DeleteManifest(t.Context(), repo, m.Digest); err != nil {
		t.Fatal(err)
	}
}

// copies holds, by reference, the OCI layouts that the copy-only clients have pulled into.
type copies struct {
	dir string
}

func (c copies) layout(ref string) string {
	return filepath.Join(c.dir, strings.NewReplacer("/", "_", ":", "_").Replace(ref))
}

// read returns the digest and the program's output of a pulled image.
func (c copies) read(t *testing.T, ref string) (digest, output string) {
	t.Helper()
	digest, output, err := imagetest.ReadLayout(c.layout(ref))
	if err != nil {
		t.Fatalf("read back %s: %v", ref, err)
	}
	return digest, output
}

func (c copies) output(t *testing.T, ref string) string {
	t.Helper()
	_, output := c.read(t, ref)
	return output
}

// forget deletes the local copy, so that the next pull starts from nothing.
func (c copies) forget(t *testing.T, ref string) {
	t.Helper()
	removeAll(t, c.layout(ref))
}

// writeImage writes the image as a layout tagged "t" into a new directory.
func writeImage(t *testing.T, b *imagetest.Bundle) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	b.WriteLayout(t, dir, "t")
	return dir
}

// writeArchive writes the image as `docker save` does and returns the path.
func writeArchive(t *testing.T, im *imagetest.Image, ref string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	im.WriteDockerArchive(t, path, ref)
	return path
}

// policy is the signature policy that the containers tools require; it accepts everything.
const policy = `{"default":[{"type":"insecureAcceptAnything"}]}`

type skopeo struct {
	copies
	env  *tool.Env
	path string
}

func newSkopeo(t *testing.T) *skopeo {
	t.Helper()
	dir := t.TempDir()
	return &skopeo{copies{dir}, tool.NewEnv(dir), tool.System(t, "skopeo")}
}

func (s *skopeo) push(t *testing.T, im *imagetest.Image, ref string) {
	t.Helper()
	s.copy(t, "oci:"+writeImage(t, &im.Bundle)+":t", "docker://"+ref)
}

func (s *skopeo) pull(t *testing.T, ref string) {
	t.Helper()
	s.copy(t, "docker://"+ref, "oci:"+s.layout(ref)+":t")
}

func (s *skopeo) copy(t *testing.T, from, to string, more ...string) {
	t.Helper()
	s.env.Run(t, s.path, s.copyArgs(from, to, more...)...)
}

func (s *skopeo) copyArgs(from, to string, more ...string) []string {
	return append([]string{"--insecure-policy", "copy", "--quiet", "--preserve-digests",
		"--src-tls-verify=false", "--dest-tls-verify=false", from, to}, more...)
}
