package tiers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	traces  string // directory of the real sample, or empty
	results *Results
}

// pick returns quick in a quick look, and full otherwise.
func pick[T any](b *bench, full, quick T) T {
	if b.Run.Quick {
		return quick
	}
	return full
}

// slipway runs the program and returns what it printed. An exit status of 3 or more is a verdict on
// the program's work and not an error.
func (b *bench) slipway(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.Binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Dir = b.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.Dir, "TMPDIR=" + b.Dir}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 3 {
		b.Logf("slipway %s judges: %s", strings.Join(args[:min(2, len(args))], " "), lastLine(stderr.Bytes()))
		return stdout.Bytes(), nil
	}
	if err != nil {
		return stdout.Bytes(), fmt.Errorf("slipway %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, tail(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// answer runs the program and reads the JSON it prints.
func (b *bench) answer(ctx context.Context, into any, args ...string) error {
	out, err := b.slipway(ctx, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("parse what slipway %s prints: %w", strings.Join(args[:min(2, len(args))], " "), err)
	}
	return nil
}

// tail returns the end of a program's output.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
