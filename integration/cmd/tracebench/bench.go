package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

	begin    time.Time
	serial   int
	analysed *analysed // what analyse leaves for figures
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

// runAll runs scenarios one after the other. One that fails does not keep the
// others from running; an error is returned for those that did.
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

// needRoom fails if the disk has less than so many bytes for something.
func (b *bench) needRoom(what string, bytes int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &st); err != nil {
		return fmt.Errorf("look for room in %s: %w", b.o.dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes {
		return fmt.Errorf("%s takes %.1f GB and %s has %.1f: choose another -dir or fewer records", what, float64(bytes)/1e9, b.o.dir, float64(free)/1e9)
	}
	return nil
}

// readJSON reads a file that the program wrote.
func readJSON(into any, elem ...string) error {
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
