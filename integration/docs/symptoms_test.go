package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreign are the messages and commands of other programs in docs/troubleshooting.md.
var foreign = []string{
	"server gave HTTP response to HTTPS client", "x509: certificate signed by unknown authority", "manifest unknown",
	"docker save", "docker push", "helm upgrade",
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	// joined matches what is between two parts of a text in a program.
	joined = regexp.MustCompile(`"\s*\+\s*"`)
	// leftOut matches what stands for the parts of a message that differ from case to case.
	leftOut = regexp.MustCompile(`…|\b[NM]\b|: `)
)

// TestSymptoms looks up the messages that docs/troubleshooting.md quotes in the first columns of its
// tables. Each must be in the program, so that readers find it by what they see.
func TestSymptoms(t *testing.T) {
	const name = "docs/troubleshooting.md"
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	program := programText(t)
	found := 0
	for line := range strings.Lines(string(text)) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(first, -1) {
			message := m[1]
			if !strings.Contains(message, " ") || strings.HasPrefix(message, "slipway ") || slices.Contains(foreign, message) {
				continue
			}
			for _, part := range leftOut.Split(message, -1) {
				if part = strings.Trim(part, " ,"); !strings.Contains(program, part) {
					t.Errorf("%s: %q: no message of the program has %q", name, message, part)
				}
			}
			found++
		}
	}
	if found < 30 {
		t.Errorf("the page quotes %d messages", found)
	}
	t.Logf("%d messages", found)
}

// advice matches the first part of an advice of package wrongserver.
var advice = regexp.MustCompile(`return "; ([^:,"]+)`)

// TestAdvice checks that docs/troubleshooting.md has each advice that commands give about a
// registry that they cannot reach, because that is what people search for.
func TestAdvice(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("docs/troubleshooting.md")
	found := advice.FindAllStringSubmatch(read("oci/client/wrongserver/advice.go"), -1)
	for _, m := range found {
		if !strings.Contains(page, "`"+m[1]) {
			t.Errorf("the page lacks %q", m[1])
		}
	}
	if len(found) < 8 {
		t.Errorf("there are only %d advices", len(found))
	}
}

// programText returns the sources of the program without its tests. Texts that are written in
// several parts are joined.
func programText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if slices.Contains([]string{".git", "integration", "bench", "bin", "testdata"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(file)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return joined.ReplaceAllString(all.String(), "")
}
