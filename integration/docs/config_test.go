package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.org/slipway/config"
)

// TestConfigurations reads each YAML block as a configuration. Either the registry or the agent
// must accept it. Parts of a configuration, and other YAML, are marked <!-- fragment -->.
func TestConfigurations(t *testing.T) {
	checked := 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.lang != "yaml" || b.mark == "fragment" {
				continue
			}
			checked++
			if err := checkConfiguration(b.text); err != nil {
				t.Errorf("%s:%d: the registry or the agent must take this, or <!-- fragment --> stands above it\n%v", p.name, b.line, err)
			}
		}
	}
	t.Logf("%d configurations", checked)
}

func checkConfiguration(text string) error {
	secrets := func(string) ([]byte, error) { return []byte(strings.Repeat("0123456789abcdef", 4)), nil }
	_, _, registry := config.Parse(strings.NewReader(text), &config.Options{ReadFile: secrets})
	if registry == nil {
		return nil
	}
	_, _, agent := config.ParseAgent(strings.NewReader(text), &config.Options{ReadFile: secrets})
	if agent == nil {
		return nil
	}
	return fmt.Errorf("registry: %w\nagent: %w", registry, agent)
}

// named matches the paths that a mark names.
var named = regexp.MustCompile(`\b(integration|scripts|docs)/[a-z./-]*[a-z]`)

// TestFences checks that every block names its language. Blocks of commands are sh, and are run.
// If one is not run, a mark says why, and where else its commands run, if they do.
func TestFences(t *testing.T) {
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			switch b.lang {
			case "":
				t.Errorf("%s:%d: the block names no language: sh for commands, text for what they print", p.name, b.line)
			case "bash", "shell", "console":
				t.Errorf("%s:%d: blocks of commands are sh", p.name, b.line)
			}
			if b.mark == "fragment" && b.lang != "yaml" || b.mark != "" && b.mark != "fragment" && (b.lang != "sh" || b.notRun() == "") {
				t.Errorf("%s:%d: the mark %q is of another kind of block, or gives no reason", p.name, b.line, b.mark)
			}
			for _, file := range named.FindAllString(b.mark, -1) {
				if _, err := os.Stat(filepath.Join(root, file)); err != nil {
					t.Errorf("%s:%d: the mark names %s, which is not there", p.name, b.line, file)
				}
			}
		}
	}
}
