package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/measure"
)

// bench is a run of some scenarios.
type bench struct {
	o       *options
	dir     string // of everything on disk; removed at the end
	log     io.Writer
	results *Results
	run     measure.Run // what is known of the run before it begins

	begin  time.Time
	serial int
}

func newBench(o *options, dir string) (*bench, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if o.traces != "" { // the program works in a directory of its own
		if o.traces, err = filepath.Abs(o.traces); err != nil {
			return nil, err
		}
	}
	return &bench{o: o, dir: dir, log: os.Stderr, results: &Results{}, begin: time.Now(),
		run: measure.Run{Commit: o.commit, Command: o.command, Machine: measure.ThisMachine(dir), Rounds: o.rounds, Quick: o.quick}}, nil
}

// runAll runs scenarios one after the other. One that fails does not keep the others from
// running; an error is returned for those that did.
func (b *bench) runAll(ctx context.Context, list []measure.Scenario[*bench]) error {
	var errs []error
	for i, sc := range list {
		b.logf("== %s (%d of %d)", sc.Name, i+1, len(list))
		if err := sc.Run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", sc.Name, err))
			b.logf("scenario %s failed: %v", sc.Name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// since completes what is known of a run, which began then.
func (b *bench) since(began time.Time) measure.Run {
	r := b.run
	r.Date, r.TookSec = began.UTC().Truncate(time.Second), time.Since(began).Seconds()
	return r
}

// logf prints progress with the time since the start.
func (b *bench) logf(format string, args ...any) {
	fmt.Fprintf(b.log, "%5ds  %s\n", int(time.Since(b.begin).Seconds()), fmt.Sprintf(format, args...))
}

// newDir returns the path of a directory that is not there yet.
func (b *bench) newDir() string {
	b.serial++
	return filepath.Join(b.dir, fmt.Sprintf("d%d", b.serial))
}

// remove removes directories; that it could not is said and no more.
func (b *bench) remove(dirs ...string) {
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			b.logf("remove %s: %v", d, err)
		}
	}
}

// pick is the second of two in a quick look.
func pick[T any](b *bench, full, quick T) T {
	if b.o.quick {
		return quick
	}
	return full
}

// slipway runs the program and returns what it printed. An exit status of 3 or more is a
// verdict on what it has done, and no error.
func (b *bench) slipway(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, b.o.binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Dir = b.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + b.dir}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 3 {
		b.logf("slipway %s judges: %s", strings.Join(args[:min(2, len(args))], " "), lastLine(stderr.Bytes()))
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

// tail is the end of what a program printed.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}

func lastLine(b []byte) string {
	s := strings.TrimSpace(string(b))
	return s[strings.LastIndexByte(s, '\n')+1:]
}
