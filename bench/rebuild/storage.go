package rebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/wire"
)

// Storage says what a registry's directory takes before and after its layers are dropped.
type Storage struct {
	Run    Run   `json:"run"`
	Runs   int   `json:"runs,omitempty"` // how many runs of the program it took
	Images int   `json:"images"`
	Layers int   `json:"layers"`
	Bytes  int64 `json:"layer_bytes"` // of the distinct layers
	// Before is the state when everything was converted and settled, After the state when
	// the layers were dropped, and Bare the state when the store was declared redundant,
	// and so has no parity.
	Before State `json:"before"`
	After  State `json:"after"`
	Bare   State `json:"bare"`
	// Dropped and Refused are numbers of layers, with their bytes. Smaller layers than
	// the server drops are in neither.
	Dropped      int64 `json:"dropped"`
	DroppedBytes int64 `json:"dropped_bytes"`
	Refused      int64 `json:"refused"`
	RefusedBytes int64 `json:"refused_bytes"`
	RecipeBytes  int64 `json:"recipe_bytes"`
	// Pulled is the number of images that were pulled after that, with the digest of each
	// blob compared.
	Pulled int `json:"pulled"`
}

// storageStep is a part of the scenario, with a server that is started for it.
type storageStep struct {
	rebuild string // what the configuration says of dropping layers
	do      func(*bench, context.Context, *server, *progress) error
}

func storageSteps() []storageStep {
	return []storageStep{{"", (*bench).fill}, {dropping, (*bench).drop}, {dropping, (*bench).pull}, {dropping + ", parity: 0", (*bench).bare}}
}

func runStorage(b *bench, ctx context.Context) (err error) {
	began := time.Now()
	s := &server{binary: b.Binary, dir: b.state, until: b.until()}
	if s.dir == "" {
		s.dir = b.NewDir()
		defer b.Remove(s.dir)
	}
	p := &progress{Storage: &Storage{Images: len(b.images)}}
	for _, l := range b.layers() {
		p.Storage.Layers++
		p.Storage.Bytes += l.Size
	}
	if err := errors.Join(os.MkdirAll(s.root(), 0o700), p.continued(s.dir, b.names())); err != nil {
		return err
	}
	var steps []func() error
	for _, step := range storageSteps() {
		steps = append(steps, func() error {
			if err := s.start(ctx, step.rebuild); err != nil {
				return err
			}
			return errors.Join(step.do(b, ctx, s, p), s.stop())
		})
	}
	if err := p.do(steps); err != nil {
		return err
	}
	p.Storage.Run, p.Storage.Runs = b.since(began), p.Runs
	p.Storage.Run.TookSec = p.Took
	b.results.Storage = p.Storage
	return nil
}

// fill pushes everything, and settles it.
func (b *bench) fill(ctx context.Context, s *server, p *progress) (err error) {
	for _, im := range b.images[p.Pushed:] {
		for _, l := range append(im.Layers[:len(im.Layers):len(im.Layers)], im.Config) {
			data, err := os.ReadFile(im.Blob(l.Digest))
			if err == nil {
				_, err = s.client.PushBlob(ctx, im.Repo(), data)
			}
			if err != nil {
				return fmt.Errorf("push %s: %w", im, err)
			}
		}
		if _, err := s.client.PutManifest(ctx, im.Repo(), im.Version, im.ManifestType, im.Manifest); err != nil {
			return fmt.Errorf("push %s: %w", im, err)
		}
		p.Pushed++
		b.Logf("pushed %s, %d of %d", im, p.Pushed, len(b.images))
		if err := errors.Join(p.save(), s.inTime("push")); err != nil {
			return err
		}
	}
	b.Logf("settling")
	if err = s.settle(ctx); err == nil {
		p.Storage.Before, err = s.stored(ctx)
	}
	return err
}

// drop waits until all layers are dropped or refused.
func (b *bench) drop(ctx context.Context, s *server, p *progress) error {
	var large int64
	for _, l := range b.layers() {
		if l.Size >= leastDropped {
			large++
		}
	}
	b.Logf("dropping %d layers", large)
	st, err := s.await(ctx, "drop", func(st *status) bool { return st.Recipes.Layers+st.Recipes.Refused >= large && st.Recipes.Waiting == 0 })
	b.Logf("%d layers of %s MB are dropped", st.Recipes.Layers, measure.Megabytes(st.Recipes.Bytes))
	if err != nil {
		return err
	}
	// Recipes are in packs of their own until these are settled.
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.run(ctx, &st, "status"); err != nil {
		return err
	}
	out := p.Storage
	out.Dropped, out.DroppedBytes, out.RecipeBytes = st.Recipes.Layers, st.Recipes.Bytes, st.Recipes.RecipeBytes
	out.Refused, out.RefusedBytes = st.Recipes.Refused, st.Recipes.RefusedBytes
	out.After, err = s.protected(ctx, st.PackBytes, true)
	return err
}

// pull pulls all images.
func (b *bench) pull(ctx context.Context, s *server, p *progress) error {
	b.Logf("pulling")
	for _, im := range b.images[p.Storage.Pulled:] {
		m, err := s.client.CheckImage(ctx, im.Repo(), im.Version)
		if err != nil {
			return err
		}
		if wire.Digest(m.Bytes) != im.Digest {
			return fmt.Errorf("%s has another digest", im)
		}
		p.Storage.Pulled++
		if err := errors.Join(p.save(), s.inTime("pull")); err != nil {
			return err
		}
	}
	return nil
}

// bare waits until parity is deleted.
func (b *bench) bare(ctx context.Context, s *server, p *progress) error {
	var st status
	err := s.run(ctx, &st, "status")
	if err == nil {
		p.Storage.Bare, err = s.protected(ctx, st.PackBytes, false)
	}
	return err
}

// Head implements [measure.Part].
func (s *Storage) Head() string {
	return s.Run.Head() + inRuns(s.Runs)
}

// Title implements [measure.Part].
func (s *Storage) Title() string { return "Storage" }

// About implements [measure.Part].
func (s *Storage) About() string {
	return "All images are pushed, converted and settled. Then a server drops every layer that it drops by default, however recently it was pulled and however slowly it is rebuilt. " +
		"\"Rest\" is everything else in the registry's directory: blobs and manifests. " +
		"Every image is pulled, and the digest of each blob is compared. In the end the store is declared redundant, so that the server deletes the parity."
}

// Targets implements [measure.Part].
func (s *Storage) Targets() []measure.Target {
	return []measure.Target{
		{Scenario: "storage", What: "bytes of layers dropped", Limit: 99, AtLeast: true, Unit: " %", Figure: percent(s.DroppedBytes, s.Bytes)},
		{Scenario: "storage", What: "directory after, of the layers", Limit: 50.5, Unit: " %", Figure: percent(s.Bare.all(), s.Bytes)},
		{Scenario: "storage", What: "the same with parity", Limit: 56, Unit: " %", Figure: percent(s.After.all(), s.Bytes)},
		{Scenario: "storage", What: "images pulled back", Limit: float64(s.Images), AtLeast: true, Figure: float64(s.Pulled)},
	}
}

// Write implements [measure.Part].
func (s *Storage) Write(w *strings.Builder) {
	fmt.Fprintf(w, "%d images, %d distinct layers of %s MB. %d layers of %s MB were dropped; their recipes have %s MB. %d layers of %s MB were refused.\n\n",
		s.Images, s.Layers, measure.Megabytes(s.Bytes), s.Dropped, measure.Megabytes(s.DroppedBytes), measure.Megabytes(s.RecipeBytes), s.Refused, measure.Megabytes(s.RefusedBytes))
	row := func(name string, st State) []string {
		return []string{name, measure.Megabytes(st.Packs), measure.Megabytes(st.Parity), measure.Megabytes(st.Catalogue), measure.Megabytes(st.Rest),
			measure.Megabytes(st.all()), measure.Figure(percent(st.all(), s.Bytes))}
	}
	measure.Table(w, 1, []string{"registry", "packs MB", "parity MB", "catalogue MB", "rest MB", "all MB", "% of layers"},
		[][]string{row("settled, layers kept", s.Before), row("layers dropped", s.After), row("the same without parity", s.Bare)})
}

// Pictures implements [measure.Part].
func (s *Storage) Pictures() []measure.Picture { return nil }
