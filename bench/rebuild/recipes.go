package rebuild

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"

	"example.org/slipway/gear/rebuild"
	"example.org/slipway/integration/bench/measure"
)

// Recipes says what recipes of the layers take and cost.
type Recipes struct {
	Run    Run     `json:"run"`
	Layers []Layer `json:"layers"`
	// Encoders has the beginning of the largest layer, compressed as builders of images
	// compress. Their Image is the name of the builder.
	Encoders []Layer `json:"encoders"`
}

// Layer is a layer with its recipe, which has rebuilt it.
type Layer struct {
	Digest string `json:"digest"`
	Image  string `json:"image"` // the first image that has it
	Bytes  int64  `json:"layer_bytes"`
	Plain  int64  `json:"tar_bytes"`
	Recipe int64  `json:"recipe_bytes"`
	// Encoder is the encoder that the layer was predicted with. For a layer that stays as
	// it is, it is empty, and Stays has the reason.
	Encoder string `json:"encoder,omitempty"`
	Stays   string `json:"stays,omitempty"`
	// These are CPU times. Making includes the skeleton and the verification.
	Make    float64 `json:"make_cpu_sec"`
	Rebuild float64 `json:"rebuild_cpu_sec"`
}

func runRecipes(b *bench, ctx context.Context) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	began := time.Now()
	out := &Recipes{}
	for i, src := range b.layers() {
		l := Layer{Digest: src.Digest, Image: src.im.String(), Bytes: src.Size}
		err := b.recipe(ctx, src.im.Blob(src.Digest), &l, true)
		switch {
		case errors.Is(err, rebuild.ErrUnsupported):
			l.Stays = err.Error()
		case err != nil:
			return fmt.Errorf("layer %s: %w", src.Digest, err)
		}
		b.Logf("layer %d, %s MB: recipe of %d bytes, %s", i+1, measure.Megabytes(l.Bytes), l.Recipe, l.Encoder)
		out.Layers = append(out.Layers, l)
	}
	var err error
	if out.Encoders, err = b.encoders(ctx); err != nil {
		return err
	}
	out.Run = b.since(began)
	b.results.Recipes = out
	return nil
}

// sampleBytes is how much of a layer is compressed again: 32 MiB.
const sampleBytes = 32 << 20

// encoders compresses the beginning of the largest layer as builders of images do, and
// tries the recipes. The beginning is no archive, because it ends within a file.
func (b *bench) encoders(ctx context.Context) (out []Layer, err error) {
	src := slices.MaxFunc(b.layers(), func(a, b source) int { return cmp.Compare(a.Size, b.Size) })
	plain, err := uncompressed(src.im.Blob(src.Digest), b.sample)
	if err != nil {
		return nil, err
	}
	for _, e := range []struct {
		name   string
		encode func(w io.Writer, plain []byte) error
	}{{"docker: Go's gzip, level 6", goGzip}, {"podman, skopeo: pgzip", pgzip}} {
		var blob bytes.Buffer
		if err := e.encode(&blob, plain); err != nil {
			return nil, err
		}
		path := filepath.Join(b.Dir, "encoded")
		if err := os.WriteFile(path, blob.Bytes(), 0o600); err != nil {
			return nil, err
		}
		l := Layer{Image: e.name, Bytes: int64(blob.Len())}
		if err := b.recipe(ctx, path, &l, false); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		b.Logf("%s: rebuilt at %s MB/s", e.name, measure.Figure(rate(l.Bytes, l.Rebuild)))
		out = append(out, l)
	}
	return out, nil
}

// uncompressed returns the first n bytes of the tar in a layer.
func uncompressed(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, n))
}

func goGzip(w io.Writer, plain []byte) error {
	z := gzip.NewWriter(w)
	_, err := z.Write(plain)
	return errors.Join(err, z.Close())
}

// These are pgzip's block and the part of it that the encoder of the next block sees.
const pgzipBlock, pgzipDict = 1 << 20, 16 << 10

// pgzip compresses as klauspost/pgzip does, which podman and skopeo use.
func pgzip(w io.Writer, plain []byte) error {
	if _, err := w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}); err != nil {
		return err
	}
	for at := 0; at < len(plain); at += pgzipBlock {
		end := min(at+pgzipBlock, len(plain))
		z, err := flate.NewWriterDict(w, flate.DefaultCompression, plain[max(0, at-pgzipDict):at])
		if err == nil {
			_, err = z.Write(plain[at:end])
		}
		if err == nil {
			err = z.Flush()
		}
		if err == nil && end == len(plain) {
			err = z.Close()
		}
		if err != nil {
			return err
		}
	}
	trailer := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(plain))
	_, err := w.Write(binary.LittleEndian.AppendUint32(trailer, uint32(len(plain))))
	return err
}

// recipe makes the recipe of a layer and rebuilds the layer from its stored form. The recipe
// has a skeleton if the layer is an archive.
func (b *bench) recipe(ctx context.Context, path string, l *Layer, archive bool) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	f, err := os.Create(filepath.Join(b.Dir, "plain"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var stored []byte
	if l.Make, err = cpu(func() error {
		split, plain := rebuild.NewCollector(), bufio.NewWriterSize(f, 1<<20)
		to := io.Writer(plain)
		if archive {
			to = io.MultiWriter(split, plain)
		}
		r, err := rebuild.Make(ctx, in, &rebuild.MakeOptions{Plain: to, Verify: true})
		if err != nil {
			return err
		}
		if err := plain.Flush(); err != nil {
			return err
		}
		if archive {
			var k *rebuild.Skeleton
			if k, err = split.Skeleton(); err == nil {
				r.Skeleton, err = k.Append(nil)
			}
		}
		stored = r.Append(nil)
		l.Plain, l.Recipe, l.Encoder = r.Plain, int64(len(stored)), r.Encoder()
		return err
	}); err != nil {
		return err
	}
	l.Rebuild, err = cpu(func() error {
		r, err := rebuild.Parse(stored)
		if err != nil {
			return err
		}
		return r.Rebuild(ctx, io.Discard, f, nil)
	})
	return err
}

// cpu returns the CPU time in s that this process uses while a function runs.
func cpu(do func() error) (float64, error) {
	runtime.GC() // collects the garbage of earlier work
	before, err := measure.CPUTime(os.Getpid())
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := measure.CPUTime(os.Getpid())
	return (after - before).Seconds(), err
}

// group is the sum of layers of an encoder.
type group struct {
	encoder       string
	layers        int
	bytes, recipe int64
	make, rebuild float64
}

func (g *group) add(l *Layer) {
	g.layers++
	g.bytes += l.Bytes
	g.recipe += l.Recipe
	g.make += l.Make
	g.rebuild += l.Rebuild
}

// groups returns the layers that have recipes, in sum and by encoder.
func (r *Recipes) groups() (all group, by []group) {
	all.encoder = "all"
	for i := range r.Layers {
		l := &r.Layers[i]
		if l.Stays != "" {
			continue
		}
		all.add(l)
		at := slices.IndexFunc(by, func(g group) bool { return g.encoder == l.Encoder })
		if at < 0 {
			at = len(by)
			by = append(by, group{encoder: l.Encoder})
		}
		by[at].add(l)
	}
	return all, by
}

// bytes returns the size of all layers.
func (r *Recipes) bytes() (n int64) {
	for i := range r.Layers {
		n += r.Layers[i].Bytes
	}
	return n
}

// Head implements [measure.Part].
func (r *Recipes) Head() string { return r.Run.Head() }

// Title implements [measure.Part].
func (r *Recipes) Title() string { return "Recipes" }

// About implements [measure.Part].
func (r *Recipes) About() string {
	return "The recipe of each distinct layer is made, verified, stored and read again. Then it rebuilds the layer, whose digest is compared, as a registry does before it drops the layer. " +
		"Then the first 32 MiB of the largest layer are compressed as builders of images do, and treated alike. All of this runs on one processor, and rates are bytes of the layer by CPU time."
}

// Targets implements [measure.Part].
func (r *Recipes) Targets() []measure.Target {
	all, _ := r.groups()
	out := []measure.Target{
		{Scenario: "recipes", What: "bytes of gzip layers with a recipe", Limit: 99, AtLeast: true, Unit: " %", Figure: percent(all.bytes, r.bytes())},
		{Scenario: "recipes", What: "made and verified, a core", Limit: 6, AtLeast: true, Unit: " MB/s", Figure: rate(all.bytes, all.make)},
	}
	for i, limit := range []float64{15, 35} { // in the order of encoders
		t := measure.Target{Scenario: "recipes", What: "rebuilt, a core", Limit: limit, AtLeast: true, Unit: " MB/s", Missing: i >= len(r.Encoders)}
		if !t.Missing {
			l := &r.Encoders[i]
			t.What += ", " + l.Image
			t.Figure = rate(l.Bytes, l.Rebuild)
		}
		out = append(out, t)
	}
	return out
}

// Write implements [measure.Part].
func (r *Recipes) Write(w *strings.Builder) {
	all, by := r.groups()
	fmt.Fprintf(w, "%d distinct layers of %s MB; %d of %s MB have a recipe.\n\n", len(r.Layers), measure.Megabytes(r.bytes()), all.layers, measure.Megabytes(all.bytes))
	row := func(name string, g *group) []string {
		return []string{name, fmt.Sprint(g.layers), measure.Megabytes(g.bytes), fmt.Sprint(g.recipe), measure.Figure(percent(g.recipe, g.bytes)),
			measure.Figure(rate(g.bytes, g.make)), measure.Figure(rate(g.bytes, g.rebuild)), measure.Figure(rate(g.bytes, g.make+g.rebuild))}
	}
	var rows [][]string
	for _, g := range append(by, all) {
		rows = append(rows, row(g.encoder, &g))
	}
	head := []string{"predicted as", "layers", "MB", "recipe bytes", "recipe % of layer", "made and verified MB/s", "rebuilt MB/s", "both MB/s"}
	measure.Table(w, 1, head, rows)
	rows = nil
	for i := range r.Encoders {
		var g group
		g.add(&r.Encoders[i])
		rows = append(rows, row(r.Encoders[i].Image+" ("+r.Encoders[i].Encoder+")", &g))
	}
	w.WriteString("\n")
	head[0] = "compressed as by (predicted as)"
	measure.Table(w, 1, head, rows)
	for i := range r.Layers {
		if l := &r.Layers[i]; l.Stays != "" {
			fmt.Fprintf(w, "\n%s of %s stays: %s.\n", l.Digest, l.Image, l.Stays)
		}
	}
}

// Pictures implements [measure.Part].
func (r *Recipes) Pictures() []measure.Picture { return nil }
