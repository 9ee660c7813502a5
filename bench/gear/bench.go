package gear

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	trees      string // the directory of the trees that are compared
	images     []*image
	categories map[string]string // by series
	set        string            // the report's words on the images
	results    *Results
	loaded     *loaded
}

func newBench(o *options, in *measure.Bench, trees string) (*bench, error) {
	b := &bench{Bench: in, trees: trees, results: &Results{}}
	layouts, set := o.corpus, o.corpusName
	if layouts == "" {
		set = "a small generated set: savings and rates on it mean little"
		layouts = filepath.Join(in.Dir, "generated")
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
	b.set = fmt.Sprintf("%d images in %d series (%s)", len(b.images), len(series), set)
	return b, nil
}

// readCategories reads lines SERIES,CATEGORY. Without a file it returns the categories of the usual
// series, which are Docker Hub's.
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

// category returns the category of a series. A series on no list is its own category.
func (b *bench) category(series string) string {
	if c := b.categories[series]; c != "" {
		return c
	}
	return "Others"
}

// sharesServer reports whether a scenario uses the server that holds all images.
func sharesServer(name string) bool {
	return name == "storage" || name == "oracle" || name == "serving"
}

// since completes the description of a run that began at the given time.
func (b *bench) since(began time.Time) Run { return Run{Run: b.Since(began), Set: b.set} }

// server starts a Slipway on a new directory.
func (b *bench) server(ctx context.Context, workers int, env ...string) (*server, error) {
	return startSlipway(ctx, b.Binary, b.NewDir(), workers, env...)
}

// drop stops a server and removes its directory.
func (b *bench) drop(s *server) {
	s.stop()
	if err := os.RemoveAll(s.dir); err != nil {
		b.Logf("remove the directory of %s: %v", s.name, err)
	}
}
