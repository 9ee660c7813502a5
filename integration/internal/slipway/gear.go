package slipway

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/proc"
)

// GearStatus holds the part of slipway status that tests need.
type GearStatus struct {
	Layers      int64             `json:"layers"`
	Files       int64             `json:"files"`
	StoredBytes int64             `json:"stored_bytes"`
	Packs       int64             `json:"packs"`
	PackBytes   int64             `json:"pack_bytes"`
	Waiting     int64             `json:"waiting"`
	Failed      int64             `json:"failed"`
	Active      []json.RawMessage `json:"active"`
	Failures    []struct{ Layer, Reason string }
}

// GearStatus returns the state of the conversion.
func (s *Server) GearStatus() GearStatus {
	s.t.Helper()
	var st GearStatus
	if err := json.Unmarshal([]byte(s.Run("status", "--json")), &st); err != nil {
		s.t.Fatalf("slipway status: %v", err)
	}
	return st
}

// Converted waits until nothing is left to convert, and returns the state at that time. A failed
// conversion fails the test.
func (s *Server) Converted() GearStatus {
	s.t.Helper()
	var st GearStatus
	proc.Poll(s.t, 10*time.Minute, "the end of all conversions", func() bool {
		st = s.GearStatus()
		return st.Waiting == 0 && len(st.Active) == 0
	})
	if st.Failed > 0 {
		s.t.Fatalf("%d conversions failed: %v", st.Failed, st.Failures)
	}
	return st
}

// PackObjects returns the ids of the packs in the server's storage.
func (s *Server) PackObjects() []string {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Root, "slipway", "gear", "packs"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() {
			s.t.Fatalf("%s in the directory of packs is a directory", e.Name())
		}
		ids = append(ids, e.Name())
	}
	return ids
}

// Export writes the tree of an image, "repository:tag", into a new directory and returns the
// directory.
func (s *Server) Export(image string, args ...string) string {
	s.t.Helper()
	dir, err := s.TryExport(s.t.Context(), image, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// TryExport is like Export, for images that may be gone or damaged.
func (s *Server) TryExport(ctx context.Context, image string, args ...string) (string, error) {
	dir := filepath.Join(s.t.TempDir(), "tree")
	_, err := Program(ctx, s.t, append([]string{"export", s.Addr + "/" + image, dir}, args...)...)
	return dir, err
}

// CommandError is a run of the binary that failed.
type CommandError struct {
	Args   []string
	Output string
	Err    error
}

// Error implements error.
func (e *CommandError) Error() string {
	return "slipway " + strings.Join(e.Args, " ") + ": " + e.Err.Error() + "\n" + e.Output
}

// Unwrap returns the underlying error.
func (e *CommandError) Unwrap() error { return e.Err }

// Program runs the binary and returns its standard output. An error is a *CommandError that holds
// its standard error.
func Program(ctx context.Context, t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, Binary(t), args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// The command gets no credentials or settings of the user who runs the test.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	if err := cmd.Run(); err != nil {
		return "", &CommandError{args, stderr.String() + stdout.String(), err}
	}
	return stdout.String(), nil
}
