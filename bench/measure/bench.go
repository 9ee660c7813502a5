package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Bench is a run of a suite. Only one goroutine may use it, except for Logf.
type Bench struct {
	// Binary is the slipway binary to measure.
	Binary string
	// Dir holds everything on disk.
	Dir string
	// Log receives the progress.
	Log io.Writer
	// Run holds what is known of a scenario's run before it begins.
	Run Run

	begin  time.Time
	serial int
}

// Start makes a run of the named suite. Others may read its directory, because web servers read
// it as another user. The caller closes the run.
func (o *Options) Start(name string) (*Bench, error) {
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(binary); err != nil {
		return nil, err
	}
	parent, err := filepath.Abs(o.Dir) // programs have their own working directories
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "slipway-"+name+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	b := o.On(binary, dir)
	b.Logf("measuring on %s", b.Run.Machine)
	return b, nil
}

// On makes a run in an existing directory, which stays.
func (o *Options) On(binary, dir string) *Bench {
	return &Bench{Binary: binary, Dir: dir, Log: os.Stderr, begin: time.Now(),
		Run: Run{Commit: o.Commit, Command: o.Command, Machine: ThisMachine(dir), Rounds: o.Rounds, Quick: o.Quick}}
}

// Close removes the directory.
func (b *Bench) Close() error { return os.RemoveAll(b.Dir) }

// Since completes the description of a run that began at the given time.
func (b *Bench) Since(began time.Time) Run {
	r := b.Run
	r.Date, r.TookSec = began.UTC().Truncate(time.Second), time.Since(began).Seconds()
	return r
}

// Logf prints progress with the time since the start.
func (b *Bench) Logf(format string, args ...any) {
	fmt.Fprintf(b.Log, "%5ds  %s\n", int(time.Since(b.begin).Seconds()), fmt.Sprintf(format, args...))
}

// Serial returns a number that no other call returns.
func (b *Bench) Serial() int {
	b.serial++
	return b.serial
}

// NewDir returns the path of a directory that does not exist yet.
func (b *Bench) NewDir() string { return filepath.Join(b.Dir, fmt.Sprintf("d%d", b.Serial())) }

// Remove removes directories. It only logs failures.
func (b *Bench) Remove(dirs ...string) {
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			b.Logf("remove %s: %v", d, err)
		}
	}
}

// Sample returns the arguments with which slipway imports the real sample from a directory. The
// store, their last argument, is left out. Sample returns nil if the sample is missing.
func (b *Bench) Sample(dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	path, err := filepath.Abs(filepath.Join(dir, "dal09_3d_get_uris.csv.zst"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		b.Logf("the real sample is not in %s", dir)
		return nil, nil
	}
	return []string{"trace", "import", path, "--format", "uris", "--start", "2017-06-20", "--rate", "2.8", "--zone", "sample", "-o"}, nil
}

// RunAll runs scenarios one after the other. Unless before is nil, it calls before ahead
// of each scenario. A scenario that fails does not keep the others from running. RunAll
// returns the errors of the scenarios that failed.
func RunAll[B interface{ Logf(string, ...any) }](ctx context.Context, b B, list []Scenario[B], before func(name string)) error {
	var errs []error
	for i, sc := range list {
		b.Logf("== %s (%d of %d)", sc.Name, i+1, len(list))
		if before != nil {
			before(sc.Name)
		}
		if err := sc.Run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", sc.Name, err))
			b.Logf("scenario %s failed: %v", sc.Name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// ReadJSON reads a file that a program wrote.
func ReadJSON(into any, elem ...string) error {
	path := filepath.Join(elem...)
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("parse %s: %w", filepath.Base(path), err)
	}
	return nil
}
