package main

import (
	"bytes"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// link matches a link or a picture in a document: its text, its target and the part of the
// page to which it leads.
var link = regexp.MustCompile(`(!?)\[([^\]\n]*)\]\(([^()#\s:]+)(#[^()\s]*)?\)`)

// documents adds README.md and docs to a directory of a package that has everything else
// already. The links of the documents lead to each other and to the examples. A link to a
// file that the package does not have becomes its text.
func (t *tree) documents(dir string) error {
	names, err := matched("README.md", "docs/*.md", "docs/*/*.md", "docs/img/*.svg", "docs/reference/*.yaml")
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, n := range slices.Clone(*t).complete() {
		if rest, ok := strings.CutPrefix(n.path, dir+"/"); ok {
			have[rest] = true
		}
	}
	for _, name := range names {
		for have[name] = true; path.Dir(name) != "."; have[name] = true {
			name = path.Dir(name)
		}
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if path.Ext(name) == ".md" {
			data = relink(name, data, have)
		}
		t.file(path.Join(dir, name), 0o644, data)
	}
	return nil
}

// moved are the directories of the sources that lie elsewhere in packages; see examples.
var moved = strings.NewReplacer("deploy/examples", "examples", "deploy/nginx", "examples/nginx", "deploy/haproxy", "examples/haproxy",
	"deploy/prometheus", "examples/prometheus", "deploy/grafana", "examples/grafana")

// relink corrects the links of a document for a package that has the named files. The names
// are relative to the directory of README.md.
func relink(name string, doc []byte, have map[string]bool) []byte {
	here := path.Dir(name)
	return link.ReplaceAllFunc(doc, func(all []byte) []byte {
		m := link.FindSubmatch(all)
		to := moved.Replace(path.Join(here, string(m[3])))
		if !have[to] {
			return m[2]
		}
		up := strings.Repeat("../", strings.Count(name, "/"))
		if rest, ok := strings.CutPrefix(to, here+"/"); ok {
			up, to = "", rest
		}
		return slices.Concat(m[1], []byte("["), m[2], []byte("]("+up+to), bytes.TrimSpace(m[4]), []byte(")"))
	})
}
