package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// markdown is the dialect of the documents: CommonMark with tables. readDocument refuses HTML in
// them, except comments.
var markdown = goldmark.New(goldmark.WithExtensions(extension.Table, extension.Linkify),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()), goldmark.WithRendererOptions(html.WithUnsafe()))

// document is a parsed page.
type document struct {
	// source is the page's path in the repository. target is its path in the site.
	source, target string
	title          string
	anchors        map[string]bool
	text           []byte
	tree           ast.Node
}

// readDocument parses a page.
func readDocument(source string, src []byte) (*document, error) {
	ids := &headingIDs{seen: map[string]bool{}}
	tree := markdown.Parser().Parse(text.NewReader(src), parser.WithContext(parser.NewContext(parser.WithIDs(ids))))
	d := &document{source: source, target: target(source), text: src, tree: tree, anchors: ids.seen}
	var comments []ast.Node
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if d.title == "" && n.Level == 1 {
				d.title = plain(n, src)
			}
		case *ast.HTMLBlock:
			if !bytes.HasPrefix(bytes.TrimSpace(n.Lines().Value(src)), []byte("<!--")) {
				return 0, fmt.Errorf("%s: HTML in a page: %.60q", source, n.Lines().Value(src))
			}
			comments = append(comments, n)
		case *ast.RawHTML:
			return 0, fmt.Errorf("%s: HTML in a page: %.60q; write <placeholders> as code", source, n.Segments.Value(src))
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range comments {
		c.Parent().RemoveChild(c.Parent(), c)
	}
	if d.title == "" {
		return nil, fmt.Errorf("%s: the page has no title (# ...)", source)
	}
	return d, nil
}

// target returns the path in the site of a page of the repository. docs/ is the site's root.
func target(source string) string {
	name := strings.TrimSuffix(source, ".md")
	if rest, ok := strings.CutPrefix(name, "docs/"); ok {
		if base, ok := strings.CutSuffix(rest, "README"); ok {
			return base + "index.html"
		}
		return rest + ".html"
	}
	if !strings.Contains(name, "/") {
		name = strings.ToLower(name)
	}
	return "project/" + name + ".html"
}

// plain returns the text of a node without its markup.
func plain(n ast.Node, src []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Text:
				b.Write(n.Value(src))
				if n.SoftLineBreak() {
					b.WriteByte(' ')
				}
			case *ast.String:
				b.Write(n.Value)
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// headingIDs makes the anchors of headings in the way that the usual repository hosts do, so that
// the same link works there and in the site.
type headingIDs struct{ seen map[string]bool }

// Generate implements parser.IDs.
func (h *headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(string(value))) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			b.WriteRune(r)
		}
	}
	id := b.String()
	for i := 1; h.seen[id]; i++ {
		id = fmt.Sprintf("%s-%d", b.String(), i)
	}
	h.seen[id] = true
	return []byte(id)
}

// Put implements parser.IDs.
func (h *headingIDs) Put(value []byte) { h.seen[string(value)] = true }

// links calls do with each link and image of a page, and replaces it with what do returns.
func (d *document) links(do func(to string) (string, error)) error {
	var bad []error
	change := func(to []byte) []byte {
		s, err := do(string(to))
		if err != nil {
			bad = append(bad, fmt.Errorf("%s: %w", d.source, err))
		}
		return []byte(s)
	}
	_ = ast.Walk(d.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			switch n := n.(type) {
			case *ast.Link:
				n.Destination = change(n.Destination)
			case *ast.Image:
				if plain(n, d.text) == "" {
					bad = append(bad, fmt.Errorf("%s: the image %s has no text for who does not see it", d.source, n.Destination))
				}
				n.Destination = change(n.Destination)
			}
		}
		return ast.WalkContinue, nil
	})
	return errors.Join(bad...)
}

// external reports whether a link leads out of the repository. It returns an error for a link that
// is neither a web address nor a mail address.
func external(to string) (bool, error) {
	u, err := url.Parse(to)
	if err != nil {
		return false, fmt.Errorf("the link %q is no URL: %w", to, err)
	}
	switch {
	case u.Scheme == "" && u.Host == "":
		return false, nil
	case u.Scheme == "mailto" && strings.Contains(u.Opaque, "@"):
		return true, nil
	case (u.Scheme == "https" || u.Scheme == "http") && u.Host != "":
		return true, nil
	}
	return true, fmt.Errorf("the link %q is neither http(s)://... nor mailto:", to)
}

// render returns the HTML of a page.
func (d *document) render() ([]byte, error) {
	var b bytes.Buffer
	if err := markdown.Renderer().Render(&b, d.text, d.tree); err != nil {
		return nil, fmt.Errorf("%s: %w", d.source, err)
	}
	// A table that is wider than the page scrolls by itself.
	out := bytes.ReplaceAll(b.Bytes(), []byte("<table>"), []byte(`<div class="wide" tabindex="0"><table>`))
	return bytes.ReplaceAll(out, []byte("</table>"), []byte("</table></div>")), nil
}
