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

// Bench is a run of a benchmark program. It serves one goroutine; Logf serves any.
type Bench struct {
	// Binary is the slipway to measure.
	Binary string
	// Dir has everything on disk.
	Dir string
	// Log gets the progress.
	Log io.Writer
	// Run is what is known of a scenario's run before it begins.
	Run Run

	begin  time.Time
	serial int
}

// Start makes a run of the program with the name, whose directory others may read: web
// servers do so as somebody else. The caller closes it.
func (o *Options) Start(name string) (*Bench, error) {
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(binary); err != nil {
		return nil, err
	}
	parent, err := filepath.Abs(o.Dir) // programs work in directories of their own
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

// On makes a run in a directory that is there, and stays.
func (o *Options) On(binary, dir string) *Bench {
	return &Bench{Binary: binary, Dir: dir, Log: os.Stderr, begin: time.Now(),
		Run: Run{Commit: o.Commit, Command: o.Command, Machine: ThisMachine(dir), Rounds: o.Rounds, Quick: o.Quick}}
}

// Close removes the directory.
func (b *Bench) Close() error { return os.RemoveAll(b.Dir) }

// Since completes what is known of a run, which began then.
func (b *Bench) Since(began time.Time) Run {
	r := b.Run
	r.Date, r.TookSec = began.UTC().Truncate(time.Second), time.Since(began).Seconds()
	return r
}

// Logf prints progress with the time since the start.
func (b *Bench) Logf(format string, args ...any) {
	fmt.Fprintf(b.Log, "%5ds  %s\n", int(time.Since(b.begin).Seconds()), fmt.Sprintf(format, args...))
}

// Serial is a number that no other call returns.
func (b *Bench) Serial() int {
	b.serial++
	return b.serial
}

// NewDir returns the path of a directory that is not there yet.
func (b *Bench) NewDir() string { return filepath.Join(b.Dir, fmt.Sprintf("d%d", b.Serial())) }

// Remove removes directories; that it could not is said and no more.
func (b *Bench) Remove(dirs ...string) {
	for _, d := range dirs {
		if err := os.RemoveAll(d); err != nil {
			b.Logf("remove %s: %v", d, err)
		}
	}
}

// Sample returns the arguments with which slipway imports the real sample from a
// directory, without the store that they end with; none if it is not there.
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

// RunAll runs scenarios one after the other, each after before, which may be nil. One
// that fails does not keep the others from running; an error is returned for those that
// did.
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
