package signing

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeyNames checks that the log and errors say which key they are about. A registry has several.
func TestKeyNames(t *testing.T) {
	const what = "key for grants"
	var b bytes.Buffer
	log := slog.New(slog.NewTextHandler(&b, nil))
	path := filepath.Join(t.TempDir(), "x.key")
	for range 2 { // created, and then read
		if keys, err := LoadKeys(what, path, log); err != nil || len(keys) != 1 {
			t.Fatalf("%d keys, error %v", len(keys), err)
		}
	}
	if _, err := LoadKeys(what, "", log); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("no key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKeys(what, path, log); err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("error %v", err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, l := range lines {
		if !strings.Contains(l, what) || strings.Contains(l, "token") {
			t.Errorf("the log says %s", l)
		}
	}
	if len(lines) != 3 {
		t.Errorf("the log has %d lines: %v", len(lines), lines)
	}
}
