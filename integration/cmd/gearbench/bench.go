package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/measure"
)

// bench is a run of some scenarios.
type bench struct {
	binary     string
	dir, trees string // of everything on disk; removed at the end
	log        io.Writer
	rounds     int
	quick      bool
	images     []*image
	categories map[string]string // of a series
	results    *Results
	run        Run // what is known of the run before it begins

	begin  time.Time
	serial int
	loaded *loaded
}

func newBench(o *options, dir, trees string) (*bench, error) {
	b := &bench{binary: o.binary, dir: dir, trees: trees, log: os.Stderr, rounds: o.rounds, quick: o.quick,
		results: &Results{}, begin: time.Now()}
	layouts, set := o.corpus, o.corpusName
	if layouts == "" {
		set = "a small generated set: savings and rates on it mean little"
		layouts = filepath.Join(dir, "generated")
		if err := generate(layouts); err != nil {
			return nil, fmt.Errorf("generate images: %w", err)
		}
	}
	all, err := corpus.Read(layouts)
	if err != nil {
		return nil, err
	}
	b.images = fewer(all, o.images)
	if b.categories, err = readCategories(o.categories); err != nil {
		return nil, err
	}
	series := map[string]bool{}
	for _, im := range b.images {
		series[im.Series] = true
	}
	b.run = Run{Run: measure.Run{Commit: o.commit, Command: o.command, Machine: measure.ThisMachine(dir), Rounds: o.rounds, Quick: o.quick},
		Set: fmt.Sprintf("%d images in %d series (%s)", len(b.images), len(series), set)}
	return b, nil
}

// readCategories reads lines SERIES,CATEGORY; without a file it returns those
// of the usual series, which are Docker Hub's.
func readCategories(file string) (map[string]string, error) {
	if file == "" {
		return map[string]string{
			"debian": "Linux Distro", "golang": "Language", "python": "Language",
			"postgres": "Database", "redis": "Database", "nginx": "Web Component", "tomcat": "Web Component",
			"django": "Application Platform", "maven": "Others",
		}, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = 2
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	out := map[string]string{}
	for _, row := range rows {
		out[row[0]] = row[1]
	}
	return out, nil
}

// category of a series; one that no list has is of its own.
func (b *bench) category(series string) string {
	if c := b.categories[series]; c != "" {
		return c
	}
	return "Others"
}

// runAll runs scenarios one after the other. One that fails does not keep the
// others from running; an error is returned for those that did.
func (b *bench) runAll(ctx context.Context, list []measure.Scenario[*bench]) error {
	var errs []error
	for i, sc := range list {
		b.logf("== %s (%d of %d)", sc.Name, i+1, len(list))
		if !sharesServer(sc.Name) {
			b.unload()
		}
		if err := sc.Run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("scenario %s: %w", sc.Name, err))
			b.logf("scenario %s failed: %v", sc.Name, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	b.unload()
	return errors.Join(errs...)
}

// sharesServer tells whether a scenario uses the server that holds all images.
func sharesServer(name string) bool {
	return name == "storage" || name == "oracle" || name == "serving"
}

// since completes what is known of a run, which began then.
func (b *bench) since(began time.Time) Run {
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

// server starts a Slipway on a new directory.
func (b *bench) server(ctx context.Context, workers int, env ...string) (*server, error) {
	return startSlipway(ctx, b.binary, b.newDir(), workers, env...)
}

// drop ends a server and removes its directory.
func (b *bench) drop(s *server) {
	s.stop()
	if err := os.RemoveAll(s.dir); err != nil {
		b.logf("remove the directory of %s: %v", s.name, err)
	}
}
