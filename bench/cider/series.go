package cider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/corpus"
)

// Series says how much the cluster stores for a series of versions: for all together, and
// for each alone.
type Series struct {
	Run  measure.Run `json:"run"`
	List []SeriesOne `json:"list"`
}

// SeriesOne is the result for one series.
type SeriesOne struct {
	Series   string `json:"series"`
	Versions int    `json:"versions"`
	// Together is what the cluster stores after all versions were built as chains that share
	// volumes and blocks. Apart is the sum of what it stores for each version in a separate
	// registry and namespace. Layers is the sum of the versions' compressed layers.
	Together int64 `json:"together"`
	Apart    int64 `json:"apart"`
	Layers   int64 `json:"layers"`
}

// mostVersions is the maximum number of versions of a series: each is built twice.
const (
	mostVersions      = 6
	mostVersionsQuick = 2
)

func runSeries(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Series{}
	b.results.Series = out
	defer func() { out.Run = b.Since(began); out.Run.Rounds = 1 }()
	of := map[string][]*corpus.Image{}
	var order []string
	for _, im := range b.all {
		if len(of[im.Series]) == 0 {
			order = append(order, im.Series)
		}
		of[im.Series] = append(of[im.Series], im)
	}
	most := mostVersions
	if b.o.Quick {
		most = mostVersionsQuick
	}
	for _, s := range order {
		list := of[s][:min(most, len(of[s]))]
		if len(list) < 2 || b.o.images != "" && !strings.Contains(b.o.images, s) {
			continue
		}
		one, err := b.series(ctx, list)
		if err != nil {
			return fmt.Errorf("series %s: %w", s, err)
		}
		out.List = append(out.List, one)
		b.Logf("%-12s %2d versions: %s MB together, %s MB apart", s, one.Versions, measure.Megabytes(one.Together), measure.Megabytes(one.Apart))
	}
	return nil
}

// series builds the versions together, and each alone.
func (b *bench) series(ctx context.Context, list []*corpus.Image) (SeriesOne, error) {
	one := SeriesOne{Series: list[0].Series, Versions: len(list)}
	var err error
	if one.Together, err = b.stored(ctx, list); err != nil {
		return one, err
	}
	for _, im := range list {
		one.Layers += im.Bytes()
		n, err := b.stored(ctx, []*corpus.Image{im})
		if err != nil {
			return one, err
		}
		one.Apart += n
	}
	return one, nil
}

// stored builds images in a separate registry and namespace, returns the number of bytes that the
// cluster used for them, and removes them.
func (b *bench) stored(ctx context.Context, list []*corpus.Image) (grown int64, err error) {
	ns := fmt.Sprintf("series%d", b.Serial())
	for _, name := range []string{ns, ns + "c"} {
		if err := b.cluster.AddNamespace(ctx, name); err != nil {
			return 0, err
		}
	}
	defer func() { err = errors.Join(err, b.cluster.Purge(ctx, ns)) }()
	r, err := b.startRegistry(ctx, "5001", ns, ns+"c", "ext4")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	before, err := b.cluster.Traffic()
	if err != nil {
		return 0, err
	}
	for _, im := range list {
		if _, err := b.push(ctx, r, im, "ext4"); err != nil {
			return 0, err
		}
	}
	after, err := b.cluster.Traffic()
	return after.StoredBytes - before.StoredBytes, err
}

// Title returns the heading.
func (s *Series) Title() string { return "Series of versions" }

// Head says how the part was measured.
func (s *Series) Head() string { return s.Run.Head() }

// About says what was done.
func (s *Series) About() string {
	return fmt.Sprintf("Up to %d versions of each series are built as ext4 chains in one registry, and each version also in a separate registry and namespace. \"Stored\" is by how much the OSD's store has grown (`bluestore_stored`), including metadata of the images.", mostVersions)
}

// Targets returns the target that the versions together take 0.6 times the space.
func (s *Series) Targets() []measure.Target {
	var together, apart int64
	for _, one := range s.List {
		together, apart = together+one.Together, apart+one.Apart
	}
	t := measure.Target{Scenario: "series", What: "stored of all versions together / apart", Limit: 0.6, Missing: apart == 0}
	if apart > 0 {
		t.Figure = float64(together) / float64(apart)
	}
	return []measure.Target{t}
}

// Write writes the table.
func (s *Series) Write(w *strings.Builder) {
	var rows [][]string
	for _, one := range s.List {
		ratio := "-"
		if one.Apart > 0 {
			ratio = measure.Figure(float64(one.Together) / float64(one.Apart))
		}
		rows = append(rows, []string{one.Series, fmt.Sprint(one.Versions), measure.Megabytes(one.Layers),
			measure.Megabytes(one.Apart), measure.Megabytes(one.Together), ratio})
	}
	measure.Table(w, 1, []string{"series", "versions", "layers MB", "stored apart MB", "stored together MB", "ratio"}, rows)
}

// Pictures returns no pictures.
func (s *Series) Pictures() []measure.Picture { return nil }
