package images_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/web/images"
)

// TestTreeMemory checks that an image is not shown if it would take too much memory for
// any reason, and that a layer that occurs many times is read once.
func TestTreeMemory(t *testing.T) {
	s := images.NewShelf()
	h := open(t, s, nil)
	one := images.Layer(t, images.File("a", "a"))
	s.Push("lib/app", "often", "{}", slices.Repeat([]*gear.Index{one}, 64)...)
	holds(t, h, "/ui/tree/lib/app:often", "1 B, in 1 entry")
	if s.Looks != 1 {
		t.Errorf("a layer was read %d times", s.Looks)
	}
	value := strings.Repeat("x", 512<<10)
	var large []rootfs.Entry
	for i := range images.MaxTreeBytes>>19 + 1 {
		large = append(large, rootfs.Entry{Path: fmt.Sprintf("d%04d", i), Type: rootfs.Dir, Mode: 0o755, Xattrs: []rootfs.Xattr{{Name: "user.x", Value: value}}})
	}
	s.Push("lib/app", "large", "{}", images.Layer(t, large...))
	holds(t, h, "/ui/tree/lib/app:large", "Too many files")
	shared := large[0].Xattrs
	for i := range large {
		large[i].Xattrs = shared // as decoded: all share one row of attributes
	}
	s.Push("lib/app", "alike", "{}", images.Layer(t, large...))
	holds(t, h, "/ui/tree/lib/app:alike", "d0000")
}

// TestTreeWithout checks that the files are shown even if the optional parts of the page
// fail.
func TestTreeWithout(t *testing.T) {
	s := images.AppShelf(t)
	s.Broken = errors.New("the catalogue does not answer")
	h := open(t, s, nil)
	for _, path := range []string{"lib/app:v2", "lib/app:v2?path=srv"} {
		body := holds(t, h, "/ui/tree/"+path, "data")
		for _, part := range []string{"Only in this image", "Opened at start", "Other repositories"} {
			if strings.Contains(body, part) {
				t.Errorf("%s has %q", path, part)
			}
		}
	}
}

// lent is the Access of a user who may pull lib/*, and who may also manage the registry.
type lent struct{ admin bool }

func (l lent) Open() bool { return false }

func (l lent) Authenticate(*http.Request) (*auth.Identity, error) {
	return &auth.Identity{Name: "alice"}, nil
}

func (l lent) Listed(_ *auth.Identity, repo string) bool { return strings.HasPrefix(repo, "lib/") }

func (l lent) Allowed(_ *auth.Identity, repo string, act auth.Action) bool {
	return act == auth.Admin && l.admin || act == auth.Pull && strings.HasPrefix(repo, "lib/")
}

// TestHolders checks that a user who may not see a repository learns nothing of its
// content.
func TestHolders(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, lent{})
	before := holds(t, h, "/ui/tree/lib/app:v2?path=srv", "data")
	for i := range images.MaxHolders {
		s.HeldBy.Repositories = append(s.HeldBy.Repositories, fmt.Sprintf("secret/%d", i))
	}
	s.HeldBy.More = true
	if after := holds(t, h, "/ui/tree/lib/app:v2?path=srv"); after != before {
		t.Errorf("what others hold changes the page:\n%s\n%s", before, after)
	}
	h = open(t, s, lent{admin: true})
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "Other repositories", "52 or more")
	s.HeldBy.Repositories = []string{"lib/app"}
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "not known")
	s.HeldBy.More = false
	holds(t, h, "/ui/tree/lib/app:v2?path=srv", "none")
}

// TestPlatforms checks that each platform of an index can be chosen and is then shown.
func TestPlatforms(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	s.Put("lib/app", "windows", map[string]any{"manifests": []oci.Descriptor{s.Part("v1", "windows", "amd64", "1"), s.Part("v2", "windows", "amd64", "2"), s.Part("v1", "windows", "amd64", "2")}})
	for path, srv := range map[string]bool{"": false, "?platform=windows/amd64+1": false, "?platform=windows/amd64+2": true} {
		if got := strings.Contains(holds(t, h, "/ui/tree/lib/app:windows"+path, "windows/amd64 1", "windows/amd64 2"), "srv"); got != srv {
			t.Errorf("%s: the files of the second are shown: %t, want %t", path, got, srv)
		}
	}
	holds(t, h, "/ui/tree/lib/app:windows?platform=windows/amd64", "No such platform", "windows/amd64 1, windows/amd64 2")
	s.Put("lib/app", "twice", map[string]any{"manifests": []oci.Descriptor{s.Part("v1", "linux", "arm64", ""), s.Part("v2", "linux", "arm64", "")}})
	for _, path := range []string{"", "?platform=linux/arm64"} {
		if body := holds(t, h, "/ui/tree/lib/app:twice"+path, "<strong>linux/arm64</strong>"); strings.Contains(body, "srv") || strings.Count(body, "linux/arm64</") != 1 {
			t.Errorf("%q: of two for a platform it is not the first:\n%s", path, body)
		}
	}
	var many []oci.Descriptor
	for i := range 3 * images.MaxChoices {
		many = append(many, s.Part("v1", "linux", fmt.Sprint("cpu", i), ""))
	}
	s.Put("lib/app", "many", map[string]any{"manifests": many})
	body := holds(t, h, "/ui/tree/lib/app:many?platform=linux/cpu250", "<strong>linux/cpu250</strong>", "and 199 more")
	if n := strings.Count(body, "platform=linux%2Fcpu") - strings.Count(body, "platform=linux%2Fcpu250"); n != images.MaxChoices {
		t.Errorf("%d other platforms are linked", n)
	}
	inner := s.Put("lib/app", "inner", map[string]any{"manifests": many})
	s.Put("lib/app", "outer", map[string]any{"manifests": []oci.Descriptor{{Digest: inner, Platform: images.PlatformOf("linux", "amd64")}}})
	holds(t, h, "/ui/tree/lib/app:outer", "Not an image", "names another index")
}

// TestDiffPlatform checks that the page of a difference names its platform and lets the
// reader choose another.
func TestDiffPlatform(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	s.Put("lib/app", "a", map[string]any{"manifests": []oci.Descriptor{s.Part("v1", "linux", "arm64", ""), s.Part("v2", "linux", "s390x", "")}})
	s.Put("lib/app", "b", map[string]any{"manifests": []oci.Descriptor{s.Part("v1", "linux", "riscv64", ""), s.Part("v2", "linux", "s390x", "")}})
	s.Put("lib/app", "c", map[string]any{"manifests": []oci.Descriptor{s.Part("v1", "linux", "mips", "")}})
	holds(t, h, "/ui/tree/lib/app:a?platform=linux/s390x", "diff/lib/app?platform=linux%2Fs390x&to=a")
	holds(t, h, "/ui/diff/lib/app?to=a&platform=linux/s390x", `<option value="linux/s390x" selected>`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=b", "lib/app:a</a> for <bdi>linux/s390x</bdi>", "lib/app:b</a> for <bdi>linux/s390x</bdi>", "Nothing differs here",
		`tree/lib/app:a?platform=linux%2Fs390x`, `<option value="linux/arm64">`, `<option value="linux/riscv64">`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=v2&platform=linux/arm64", "lib/app:a</a> for <bdi>linux/arm64</bdi>", "srv", `<option value="linux/arm64" selected>`)
	holds(t, h, "/ui/diff/lib/app?from=a&to=c", "for different platforms", "linux/arm64", "linux/mips")
	holds(t, h, "/ui/diff/lib/app?from=a&to=b&platform=linux/arm64", "No such platform", "lib/app:b: This image is for linux/riscv64")
}

// TestDiffConfigs checks that unreadable configs are not compared as if they were empty.
func TestDiffConfigs(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	x := images.Layer(t, images.File("a", "a"))
	s.Push("lib/app", "odd", `[]`, x)
	s.Push("lib/app", "large", `{"author":"`+strings.Repeat("x", images.MaxShownConfig)+`"}`, x)
	gone := `{"author":"nobody"}`
	s.Push("lib/app", "gone", gone, x)
	delete(s.Blobs, oci.SHA256([]byte(gone)))
	for tag, why := range map[string]string{"odd": "not of the form", "large": "too large", "gone": "is not here"} {
		for _, path := range []string{"from=v1&to=" + tag, "from=" + tag + "&to=v1"} {
			if body := holds(t, h, "/ui/diff/lib/app?"+path, "Settings are not compared. lib/app:"+tag, why, "File by file"); strings.Contains(body, "Variable A") {
				t.Errorf("%s: an absent config is compared", path)
			}
		}
	}
	s.Push("lib/app", "v6", `{"os":"linux","architecture":"arm","variant":"v6","created":"2026-01-01T00:00:00Z"}`, x)
	s.Push("lib/app", "v7", `{"os":"linux","architecture":"arm","variant":"v7","created":"2026-01-02T00:00:00Z"}`, x)
	if body := holds(t, h, "/ui/diff/lib/app?from=v6&to=v7", "linux/arm/v6", "linux/arm/v7"); strings.Contains(body, "Made") {
		t.Error("when an image was made is taken for a setting")
	}
}

// TestDiffPages checks pages of changes that begin beyond the list, at an invalid place
// and within the list.
func TestDiffPages(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	var many []rootfs.Entry
	for i := range 2*images.TreeRows + 50 {
		many = append(many, images.File(fmt.Sprintf("many/%04d", i), "x"))
	}
	s.Push("lib/app", "many", "{}", images.Layer(t, many...))
	const diff = "/ui/diff/lib/app?from=v1&to=many"
	for _, at := range []int{math.MaxInt, 1 << 40} {
		body := holds(t, h, fmt.Sprintf("%s&at=%d", diff, at), "The list ends before this page", "Rows before")
		if strings.Contains(body, "Rows behind") || strings.Contains(body, "at=-") || strings.Contains(body, "Nothing differs") {
			t.Errorf("at %d:\n%s", at, body)
		}
	}
	first := holds(t, h, diff, "Rows behind")
	if odd := holds(t, h, diff+"&at=5abc"); strings.Contains(odd, "Rows before") || len(odd) != len(first) {
		t.Error("an odd place is not the first")
	}
	holds(t, h, diff+"&at=400", "many", "0399", "Rows before")
}

// TestDiffWhere checks that the rows of a difference's summary do not overlap, and that
// they lead to what they count.
func TestDiffWhere(t *testing.T) {
	s := images.NewShelf()
	h := open(t, s, nil)
	s.Push("lib/app", "1", "{}", images.Layer(t, images.File("top", "1"), images.File("usr/one", "1"), images.File("usr/lib/deep/two", "1")))
	s.Push("lib/app", "2", "{}", images.Layer(t, images.File("top", "2"), images.File("usr/one", "2"), images.File("usr/lib/deep/two", "2")))
	const diff = "/ui/diff/lib/app?from=1&to=2"
	holds(t, h, diff, "directly in /usr<", "directly in /<", ">/usr/lib<", "path=usr%2Flib", "only=1&path=usr&")
	for path, want := range map[string][]string{"&path=usr&only=1": {"one"}, "&only=1": {"top"}, "&path=usr/lib": {"two"}, "&path=usr": {"one", "two"}} {
		body := holds(t, h, diff+path, "Only ", "Show all")
		for _, name := range []string{"top", "one", "two"} {
			if got := strings.Contains(body, "<bdi>"+name+"</bdi>"); got != slices.Contains(want, name) {
				t.Errorf("%s: %s is listed: %t", path, name, got)
			}
		}
	}
}

// TestWhyNoFiles checks that the reason shown leads to the cause.
func TestWhyNoFiles(t *testing.T) {
	s := images.AppShelf(t)
	h := open(t, s, nil)
	for _, err := range []error{gear.ErrTooLarge, gear.ErrVersion, gear.ErrInvalid} {
		s.Unread = fmt.Errorf("%w: \u202e", err)
		body := holds(t, h, "/ui/tree/lib/app:v1", "The index cannot be read", err.Error(), "--again")
		if strings.Contains(body, "\u202e") {
			t.Error("the error turns the text")
		}
	}
	s.Unread = nil
	layers := func(mediaType string) map[string]any {
		return map[string]any{"layers": []oci.Descriptor{{MediaType: mediaType, Digest: oci.SHA256(nil), URLs: []string{"https://example.org/"}}}}
	}
	for mediaType, want := range map[string]string{
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    "registries do not keep it",
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": "registries do not keep it",
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":        "Encrypted",
		"application/vnd.cncf.helm.chart.content.v1.tar+gzip":          "Not a file tree",
	} {
		s.Put("lib/app", "odd", layers(mediaType))
		if body := holds(t, h, "/ui/tree/lib/app:odd", want); want != "Not a file tree" && strings.Contains(body, "charts") {
			t.Errorf("%s is called a chart", mediaType)
		}
	}
	s.Put("lib/app", "away", layers("application/vnd.oci.image.layer.v1.tar"))
	s.Fail = oci.Errorf(oci.CodeBlobUnknown, "no layer")
	if body := holds(t, h, "/ui/tree/lib/app:away", "names another place"); strings.Contains(body, "first pull") {
		t.Error("a layer that is elsewhere is promised")
	}
	s.Fail = &gear.PendingError{Reason: "bad\u202e"}
	holds(t, h, "/ui/tree/lib/app:v1", `bad\u202e`)
	s.Fail = nil

	deep := strings.Repeat("d/", 250)
	var few []rootfs.Entry
	for i := range 40 {
		few = append(few, images.File(fmt.Sprintf("%02d/%sf", i, deep), "x"))
	}
	s.Push("lib/app", "deep", "{}", images.Layer(t, few...))
	holds(t, h, "/ui/tree/lib/app:deep", "Too many files")
}
