package ext4_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.org/slipway/node/erofs"
	"example.org/slipway/volume/ext4"
	"example.org/slipway/volume/layouttest"
)

// TestErrors checks that what a file system cannot hold is reported by path and leaves the image
// unchanged.
func TestErrors(t *testing.T) {
	attr := func(name, value string) func(*layouttest.Model) {
		return func(m *layouttest.Model) { m.At("d/f").Xattrs = []erofs.Xattr{{Name: name, Value: value}} }
	}
	for name, test := range map[string]struct {
		change func(*layouttest.Model)
		want   string
	}{
		"early":     {func(m *layouttest.Model) { m.At("d/f").Sec = ext4.MinTime - 1 }, `"d/f" was last changed`},
		"late":      {func(m *layouttest.Model) { m.At("d/f").Sec = ext4.MaxTime + 1 }, `"d/f" was last changed`},
		"attribute": {attr("user.large", strings.Repeat("v", 5000)), `"d/f" has attributes that need`},
		"name":      {attr("odd.name", ""), `"d/f" has attribute "odd.name"`},
		"acl":       {attr("system.posix_acl_access", "\x02\x00\x00\x00"), `"d/f" has attribute "system.posix_acl_access", which is no`},
		"acl kind":  {attr("system.posix_acl_access", "\x02\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"), "unknown kind 0x3"},
		"long":      {func(m *layouttest.Model) { m.Put("d/"+strings.Repeat("n", 256), layouttest.Dir(0)) }, "256 bytes; 255 are possible"},
		"links": {func(m *layouttest.Model) {
			for i := range ext4.MaxLinks {
				m.Put(fmt.Sprintf("l/%d", i), m.At("d/f"))
			}
		}, `"d/f" has 65001 names`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t)
			m := layouttest.New()
			m.Put("d/f", layouttest.File(1, 10))
			c.next(m)
			bad := layouttest.New()
			bad.Put("d/f", layouttest.File(1, 10))
			test.change(bad)
			_, err := c.image.Next(bad.Tree())
			var e *erofs.Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %s", err, test.want)
			}
			if p, meta := c.next(m); meta > 0 || len(p.Files) > 0 {
				t.Error("the image is not as it was")
			}
		})
	}
}

// TestTooLarge checks the limit of 16 TiB.
func TestTooLarge(t *testing.T) {
	m := layouttest.New()
	for i := range 3 {
		m.Put(fmt.Sprint(i), layouttest.File(uint64(i), 6<<40))
	}
	var e *erofs.Error
	if _, err := ext4.New([16]byte{}).Next(m.Tree()); !errors.As(err, &e) {
		t.Errorf("18 TiB: %v", err)
	}
}

// TestNoContent checks that a file must have a content, even if the file is empty.
// Otherwise it would keep the content of the previous tree.
func TestNoContent(t *testing.T) {
	m := layouttest.New()
	m.Put("f", layouttest.File(1, 0))
	tree := m.Tree()
	tree.FileOf[1] = -1
	var e *erofs.Error
	if _, err := ext4.New([16]byte{}).Next(tree); !errors.As(err, &e) || e.Path != "f" {
		t.Errorf("got error %v", err)
	}
}
