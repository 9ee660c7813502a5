// Package examples holds no code: its test keeps the configuration files beside
// it valid.
package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/registry/auth/patterns"
)

// TestExamples loads every file as slipway config check does. A warning counts as an
// error, because nobody who copies an example should have to wonder about a warning.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			cfg, warnings, err := config.Load(file, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range warnings {
				t.Errorf("warning: %s", w)
			}
			if !strings.Contains(string(manual), "deploy/examples/"+file) {
				t.Errorf("docs/operating.md does not mention deploy/examples/%s", file)
			}
			for i, r := range cfg.Auth.Access {
				for _, p := range r.Repositories {
					if _, err := patterns.Compile(p); err != nil {
						t.Errorf("auth.access[%d]: %v", i, err)
					}
				}
			}
		})
	}
}
