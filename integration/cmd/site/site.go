package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

//go:embed page.html
var pageHTML string

//go:embed style.css
var styleCSS []byte

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// contents is the page whose lists are the site's navigation.
const contents = "docs/README.md"

// site is the site under construction.
type site struct {
	root, out string
	docs      map[string]*document // by path in the repository
	copied    map[string]bool      // files that pages link to, by path in the repository
	linked    map[string]bool      // pages that another page links to
	nav       []section
}

// section is a part of the navigation.
type section struct {
	Title string
	Links []navLink
}

type navLink struct {
	Title  string
	source string
	// To is relative to the page being written.
	To      string
	Current bool
}

// build makes the site of the repository at root in out, and returns the number of its pages.
func build(root, out string) (int, error) {
	s := &site{root: root, out: out, docs: map[string]*document{}, copied: map[string]bool{}, linked: map[string]bool{}}
	if err := s.read(); err != nil {
		return 0, err
	}
	s.readNav()
	if err := os.RemoveAll(out); err != nil {
		return 0, err
	}
	var bad []error
	for _, source := range s.sources() {
		bad = append(bad, s.write(s.docs[source]))
	}
	for _, source := range s.sources() {
		if strings.HasPrefix(source, "docs/") && !s.linked[source] && source != contents {
			bad = append(bad, fmt.Errorf("%s: no page links to it; %s is the place", source, contents))
		}
	}
	for source := range s.copied {
		bad = append(bad, s.copy(source))
	}
	bad = append(bad, os.WriteFile(filepath.Join(out, "style.css"), styleCSS, 0o644))
	return len(s.docs), errors.Join(bad...)
}

// read parses the pages: the pages of docs/, the pages at the top, and the DESIGN.md of
// packages.
func (s *site) read() error {
	return filepath.WalkDir(s.root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(s.root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		name := d.Name()
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".md") || !strings.HasPrefix(rel, "docs/") && strings.Contains(rel, "/") && name != "DESIGN.md" {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s.docs[rel], err = readDocument(rel, src)
		return err
	})
}

func (s *site) sources() []string {
	var list []string
	for source := range s.docs {
		list = append(list, source)
	}
	slices.Sort(list)
	return list
}

// readNav takes the navigation from the headings and lists of the contents.
func (s *site) readNav() {
	d := s.docs[contents]
	if d == nil {
		return
	}
	for n := d.tree.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level > 1 {
				s.nav = append(s.nav, section{Title: plain(n, d.text)})
			}
		case *ast.List:
			if len(s.nav) == 0 {
				continue
			}
			last := &s.nav[len(s.nav)-1]
			_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
				if l, ok := n.(*ast.Link); ok && entering {
					if out, err := external(string(l.Destination)); !out && err == nil {
						last.Links = append(last.Links, navLink{Title: plain(l, d.text), source: path.Join(path.Dir(contents), string(l.Destination))})
					}
				}
				return ast.WalkContinue, nil
			})
		}
	}
	s.nav = slices.DeleteFunc(s.nav, func(c section) bool { return len(c.Links) == 0 })
}

// navOf returns the navigation for a page.
func (s *site) navOf(d *document) []section {
	nav := make([]section, len(s.nav))
	for i, c := range s.nav {
		nav[i] = section{Title: c.Title}
		for _, l := range c.Links {
			if to := s.docs[l.source]; to != nil {
				l.To, l.Current = relative(d.target, to.target), to == d
			} else {
				l.To = relative(d.target, fileTarget(l.source))
			}
			nav[i].Links = append(nav[i].Links, l)
		}
	}
	return nav
}

// write checks and rewrites the links of a page, and writes it.
func (s *site) write(d *document) error {
	bad := d.links(func(to string) (string, error) { return s.resolve(d, to) })
	body, err := d.render()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	err = pageTemplate.Execute(&b, map[string]any{
		"Title": d.title, "Body": template.HTML(body), "Nav": s.navOf(d),
		"Home": relative(d.target, "index.html"), "Style": relative(d.target, "style.css"),
	})
	if err != nil {
		return err
	}
	file := filepath.Join(s.out, filepath.FromSlash(d.target))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return errors.Join(bad, os.WriteFile(file, b.Bytes(), 0o644))
}

// resolve returns what a link of a page becomes in the site, or an error that says why it leads
// nowhere.
func (s *site) resolve(d *document, to string) (string, error) {
	if out, err := external(to); out || err != nil {
		return to, err
	}
	file, anchor, _ := strings.Cut(to, "#")
	source := d.source
	if file != "" {
		source = path.Join(path.Dir(d.source), file)
	}
	if strings.HasPrefix(source, "..") || strings.HasPrefix(file, "/") {
		return to, fmt.Errorf("the link %q leads out of the repository", to)
	}
	page := s.docs[source]
	if page == nil {
		if _, err := os.Stat(filepath.Join(s.root, source)); err != nil {
			return to, fmt.Errorf("the link %q leads to nothing: there is no %s", to, source)
		}
		s.copied[source] = true
		return relative(d.target, fileTarget(source)), nil
	}
	if page != d {
		s.linked[source] = true
	}
	if anchor == "" {
		return relative(d.target, page.target), nil
	}
	if !page.anchors[anchor] {
		return to, fmt.Errorf("the link %q leads to no heading of %s", to, source)
	}
	return relative(d.target, page.target) + "#" + anchor, nil
}

// fileTarget returns the path in the site of a file that is not a page.
func fileTarget(source string) string {
	if rest, ok := strings.CutPrefix(source, "docs/"); ok {
		return rest
	}
	if strings.HasSuffix(source, ".go") {
		source += ".txt" // browsers show it, and the site's directory holds no Go package
	}
	return "project/" + source
}

// relative returns the link from one file of the site to another.
func relative(from, to string) string {
	rel, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		return to
	}
	return filepath.ToSlash(rel)
}

// copy copies a file that a page links to into the site. For a directory it copies the files and
// makes a list of them.
func (s *site) copy(source string) error {
	from, to := filepath.Join(s.root, source), filepath.Join(s.out, fileTarget(source))
	if st, err := os.Stat(from); err != nil || st.IsDir() {
		return errors.Join(err, s.copyDir(source, from, to))
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

func (s *site) copyDir(source, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	var list strings.Builder
	fmt.Fprintf(&list, "<h1>%s</h1>\n<ul>\n", template.HTMLEscapeString(source))
	for _, e := range entries {
		name := template.HTMLEscapeString(e.Name())
		if e.IsDir() {
			fmt.Fprintf(&list, "<li>%s/</li>\n", name)
			continue
		}
		if err := s.copy(path.Join(source, e.Name())); err != nil {
			return err
		}
		at := template.HTMLEscapeString(path.Base(fileTarget(path.Join(source, e.Name()))))
		fmt.Fprintf(&list, "<li><a href=\"%s\">%s</a></li>\n", at, name)
	}
	list.WriteString("</ul>\n")
	d := &document{target: path.Join(fileTarget(source), "index.html")}
	var b bytes.Buffer
	err = pageTemplate.Execute(&b, map[string]any{"Title": source, "Body": template.HTML(list.String()), "Nav": s.navOf(d),
		"Home": relative(d.target, "index.html"), "Style": relative(d.target, "style.css")})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "index.html"), b.Bytes(), 0o644)
}
