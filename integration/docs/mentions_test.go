package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// span is code within a line of text.
var span = regexp.MustCompile("`(slipway [^`]+)`")

// TestMentions looks up each command of the program that a page mentions, in prose or in a block
// that is not run. docs/reference/cli.md must have the command and its flags.
func TestMentions(t *testing.T) {
	known := readCommands(t)
	for _, p := range pages(t) {
		if strings.HasPrefix(p.name, "docs/reference/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, p.name))
		if err != nil {
			t.Fatal(err)
		}
		// A span may continue on the next line.
		for _, m := range span.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\n", " "), -1) {
			known.check(t, p.name, m[1])
		}
		for _, b := range p.blocks {
			if b.lang != "sh" {
				continue
			}
			for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
				if line, _, _ = strings.Cut(line, " #"); strings.HasPrefix(strings.TrimSpace(line), "slipway ") {
					known.check(t, p.name, strings.TrimSpace(line))
				}
			}
		}
	}
}

// commands holds the help texts of the program's commands, by name without "slipway".
type commands map[string]string

func readCommands(t *testing.T) commands {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := commands{}
	for part := range strings.SplitSeq(string(text), "\n## slipway") {
		name, help, _ := strings.Cut(part, "\n")
		known[strings.TrimSpace(name)] = help
	}
	if len(known) < 40 {
		t.Fatalf("docs/reference/cli.md has %d commands", len(known))
	}
	return known
}

// check looks up a command line: the longest command that it begins with, and the flags after it.
func (c commands) check(t *testing.T, page, line string) {
	t.Helper()
	words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t[]|`'\"()", r) })[1:]
	name := ""
	n := 0
	for n < len(words) {
		longer := strings.TrimSpace(name + " " + words[n])
		if _, ok := c[longer]; !ok {
			break
		}
		name = longer
		n++
	}
	help := c[name]
	if n < len(words) && strings.Contains(help, "\n  slipway"+strings.TrimRight(" "+name, " ")+" COMMAND") && !strings.HasPrefix(words[n], "-") && lower.MatchString(words[n]) {
		t.Errorf("%s: %q: slipway %s has no command %q", page, line, name, words[n])
	}
	for _, w := range words[n:] {
		if w == "--" || w == "|" || w == "&&" || strings.HasPrefix(w, ">") {
			return
		}
		flag, _, _ := strings.Cut(strings.TrimRight(w, ".,;:"), "=")
		if strings.HasPrefix(flag, "--") && !hasFlag(help, flag) {
			t.Errorf("%s: %q: slipway %s has no flag %s", page, line, name, flag)
		}
	}
}

// lower matches words that can be commands, and not placeholders.
var lower = regexp.MustCompile(`^[a-z][a-z-]*$`)

// hasFlag reports whether a help text lists a flag.
func hasFlag(help, flag string) bool {
	for line := range strings.Lines(help) {
		for _, w := range strings.Fields(line) {
			if w == flag {
				return true
			}
		}
	}
	return flag == "--help"
}
