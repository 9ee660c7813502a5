package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSite builds the site of this repository. All links and anchors must lead to something.
func TestSite(t *testing.T) {
	out := t.TempDir()
	n, err := build("../../..", out)
	if err != nil {
		t.Error(err)
	}
	if n < 40 {
		t.Errorf("%d pages, want those of docs/ and the top", n)
	}
	index, err := os.ReadFile(filepath.Join(out, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`href="style.css"`, `href="start.html"`, "<h1"} {
		if !strings.Contains(string(index), want) {
			t.Errorf("index.html has no %s", want)
		}
	}
	for _, loads := range []string{"<script", `src="http`, "@import", "url(http"} {
		if strings.Contains(string(index)+string(styleCSS), loads) {
			t.Errorf("the site loads from elsewhere, or needs a script: %s", loads)
		}
	}
}

// TestLinks checks that links that lead nowhere are found.
func TestLinks(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"page", "[x](none.md)", "there is no docs/none.md"},
		{"anchor", "[x](#none)", "leads to no heading of docs/README.md"},
		{"anchor elsewhere", "[x](other.md#none)", "leads to no heading of docs/other.md"},
		{"outside", "[x](../../secret)", "out of the repository"},
		{"scheme", "[x](javascript:alert)", "neither http(s)"},
		{"image without a text", "![](other.md)", "has no text"},
		{"HTML", "<b>x</b>", "HTML in a page"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := buildPages(t, map[string]string{"docs/README.md": "# Contents\n\n" + c.text + " [o](other.md)\n", "docs/other.md": "# Other\n"})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want an error with %q", err, c.want)
			}
		})
	}
	t.Run("unlinked", func(t *testing.T) {
		err := buildPages(t, map[string]string{"docs/README.md": "# Contents\n", "docs/other.md": "# Other\n"})
		if err == nil || !strings.Contains(err.Error(), "no page links to it") {
			t.Errorf("%v; want an error about docs/other.md", err)
		}
	})
	t.Run("good", func(t *testing.T) {
		err := buildPages(t, map[string]string{
			"docs/README.md": "# Contents\n\n## Part\n\n- [o](other.md#the-second-one-1) and [r](../README.md)\n",
			"docs/other.md":  "# Other\n\n## The second, one\n\n## The second: one\n\n<!-- a comment -->\n",
			"README.md":      "# Project\n\nSee [docs](docs/README.md#part).\n",
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func buildPages(t *testing.T, pages map[string]string) error {
	t.Helper()
	root := t.TempDir()
	for name, text := range pages {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, err := build(root, filepath.Join(t.TempDir(), "site"))
	return err
}
