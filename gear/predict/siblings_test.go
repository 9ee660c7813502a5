package predict_test

import (
	"fmt"
	"strings"
	"testing"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
)

func anything(gear.File) bool { return true }

func TestSiblings(t *testing.T) {
	all := files{"d/a.js": "a", "d/b.js": "b", "d/c.js": "c", "d/x.css": "x", "d/large.js": strings.Repeat("l", 64<<10+1), "e/a.js": "ea"}
	s := predict.NewSiblings(tree(t, all), 0.02, 1e6)
	var got []string
	here := all.names("d/a.js")[0]
	for _, f := range s.Missed(all.names("d/b.js")[0], func(f gear.File) bool { return f.Name != here }) {
		got = append(got, all.paths(t, []predict.File{{Name: f.Name, From: predict.Own}})[0])
	}
	if len(got) != 1 || got[0] != "own d/c.js" {
		t.Errorf("got %v", got)
	}
	if again := s.Missed(all.names("d/a.js")[0], anything); len(again) != 1 || again[0].Name != all.names("d/b.js")[0] {
		t.Errorf("what came once comes again: %v", again)
	}
}

// TestSiblingsClose has two programs: one opens the siblings that are fetched for it, and
// one never does. For the latter the guesses end soon.
func TestSiblingsClose(t *testing.T) {
	const dirs, each, size = 200, 20, 30 << 10
	all := files{}
	for d := range dirs {
		for i := range each {
			all[fmt.Sprintf("d%d/%d.js", d, i)] = fmt.Sprintf("%d/%d %s", d, i, strings.Repeat("x", size))
		}
	}
	tr := tree(t, all)
	for _, opens := range []bool{false, true} {
		s := predict.NewSiblings(tr, 0.02, 12e6)
		brought := int64(0)
		for d := range dirs {
			for _, f := range s.Missed(all.names(fmt.Sprintf("d%d/0.js", d))[0], anything) {
				brought += f.Size
				if opens {
					s.Opened(f.Name)
				}
			}
		}
		if s.Open() != opens || opens != (brought > 100<<20) || !opens && brought > 4<<20 {
			t.Errorf("opens %v: %d bytes came, open %v", opens, brought, s.Open())
		}
	}
}
