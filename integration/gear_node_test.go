package integration

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
)

// TestGearNode makes an agent mount images whose layers have every trap, and images of a
// distribution's packages. It compares what the mounts show with an export.
func TestGearNode(t *testing.T) {
	tool.NeedRoot(t)
	s := slipway.Start(t, t.TempDir(), nil)
	a := node.Start(t, "fetch: {background: false}\n")
	cases := nastyLayers(t)
	cases["debian"] = debianLayers(t)
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			im := imagetest.Compose(runtime.GOARCH, nil, cases[name])
			pushed(t, s.Client, "team/"+name, "v1", im)
			s.Converted()
			exported := s.Export("team/" + name + ":v1")
			dir := a.Mount(s.Addr + "/team/" + name + ":v1")
			defer a.Run("umount", dir)
			lines, err := treecmp.Compare(exported, dir, &treecmp.Options{Ignore: func(path, _ string) bool {
				// If no layer describes the root, an export leaves it as the directory is.
				return path == "." && (name == "no-root" || name == "empty")
			}})
			if err != nil {
				t.Fatal(err)
			}
			if len(lines) > 0 {
				t.Errorf("the mounted tree is not that of the export:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}
