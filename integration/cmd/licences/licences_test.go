package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
`

// TestCheck checks that a module passes if it has a licence that may be linked. A module without a
// licence, with an unknown one, or with another one beside a linked package must not pass.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		wrong string // what the error says; empty if there is none
		texts int
	}{
		{"good", map[string]string{"LICENSE": mit, "NOTICE": "thanks", "README": "x"}, "", 2},
		{"none", map[string]string{"README": "x"}, "has no licence", 0},
		{"unknown", map[string]string{"COPYING": "Do nothing with this."}, "licence unknown is not one of", 1},
		{"deeper", map[string]string{"LICENSE": mit, "a/LICENSE": "Ask the author of the code in a before anything."}, "licence unknown", 2},
		{"not linked", map[string]string{"LICENSE": mit, "b/LICENSE": "Ask the author of the code in b before anything."}, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				file := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m := &module{path: "example.com/m", version: "v1", dir: dir, listed: true, dirs: map[string]bool{dir: true, filepath.Join(dir, "a"): true}}
			if c.files["a/LICENSE"] == "" {
				delete(m.dirs, filepath.Join(dir, "a"))
			}
			if err := m.read(); err != nil {
				t.Fatal(err)
			}
			err := check([]*module{m})
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("error %v, want one with %q", err, c.wrong)
			}
			if len(m.texts) != c.texts {
				t.Errorf("%d texts are kept, want %d", len(m.texts), c.texts)
			}
			var b strings.Builder
			write(&b, []*module{m, m})
			if c.wrong == "" && (!strings.Contains(b.String(), "example.com/m v1  MIT\n") || strings.Count(b.String(), "Permission is hereby") != 1) {
				t.Errorf("the list is\n%s", b.String())
			}
		})
	}
}
