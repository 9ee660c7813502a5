package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page.
type block struct {
	// lang is the word after the fence, line the line on which the block begins.
	lang string
	line int
	text string
	// mark is the comment directly above, such as "not run: needs a bucket".
	mark string
}

// page is a document.
type page struct {
	// name is its path below the root of the repository.
	name   string
	blocks []block
}

// readPage returns a page with its blocks. It is an error if a fence is not closed, or if a mark
// has no block below it.
func readPage(name, text string) (*page, error) {
	p := &page{name: name}
	var open *block
	mark, indent := "", ""
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		fence := strings.HasPrefix(trimmed, "```")
		switch {
		case open != nil && trimmed == "```":
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case fence:
			indent, _, _ = strings.Cut(line, "```")
			open = &block{lang: strings.TrimPrefix(trimmed, "```"), line: i + 1, mark: mark}
			mark = ""
		case mark != "":
			return nil, fmt.Errorf("%s:%d: the mark %q stands above no block", name, i, mark)
		case strings.HasPrefix(trimmed, "<!-- not run:"), trimmed == "<!-- fragment -->":
			mark = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(trimmed, "<!--"), "-->"))
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block is not closed", name, open.line)
	}
	return p, nil
}

// notRun returns why a shell block is not run, or "" if it is.
func (b *block) notRun() string {
	reason, ok := strings.CutPrefix(b.mark, "not run:")
	if !ok {
		return ""
	}
	return strings.TrimSpace(reason)
}

// count returns how many shell blocks are run, and how many are not.
func (p *page) count() (run, not int) {
	for _, b := range p.blocks {
		switch {
		case b.lang != "sh":
		case b.notRun() == "":
			run++
		default:
			not++
		}
	}
	return run, not
}

// root is the path of the repository from this directory.
const root = "../.."

// pages reads all documents, sorted by name.
func pages(t *testing.T) []*page {
	t.Helper()
	names := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(file, ".md") {
			rel, _ := filepath.Rel(root, file)
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var list []*page
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := readPage(name, string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		list = append(list, p)
	}
	return list
}
