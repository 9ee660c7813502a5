package gear

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/wire"
)

// Push says how long pushed images wait for their indexes, and what the next version of an image
// costs.
type Push struct {
	Run   Run     `json:"run"`
	After []After `json:"after"`
	Next  []Next  `json:"next"`
}

// After is a push of an image, measured with a new server each time.
type After struct {
	Case   string `json:"case"`
	Image  string `json:"image"`
	Layers int    `json:"layers"`
	Bytes  int64  `json:"bytes"`
	// Push is the time of the push, and Index the time from its end until all indexes exist, in
	// seconds. ServerCPU covers both. PeakRSS is in bytes.
	Push      []float64 `json:"push_sec"`
	Index     []float64 `json:"index_sec"`
	ServerCPU []float64 `json:"server_cpu_sec"`
	PeakRSS   []int64   `json:"peak_rss"`
}

// Next is an image and its next version, which shares most of its layers.
type Next struct {
	Image string `json:"image"`
	Next  string `json:"next"`
	// Bytes is the size of all layers of the first image. New is the size of the layers
	// that only the second image has.
	Bytes int64 `json:"bytes"`
	New   int64 `json:"new_bytes"`
	// Full and Again are CPU seconds of the server, from the beginning of the push until all
	// indexes exist.
	Full  []float64 `json:"full_cpu_sec"`
	Again []float64 `json:"next_cpu_sec"`
}

const (
	// pushedBytes is the approximate size of the image and of the layer that are pushed.
	pushedBytes = 100_000_000
	nextPairs   = 3
	caseImage   = "several layers"
	caseLayer   = "one layer"
)

func runPush(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Push{}
	several, single, err := b.pushed()
	if err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		im   *image
	}{{caseImage, several}, {caseLayer, single}} {
		a := After{Case: x.name, Image: x.im.String(), Layers: len(x.im.Layers), Bytes: x.im.Bytes()}
		for range b.Run.Rounds {
			if err := b.after(ctx, x.im, &a); err != nil {
				return err
			}
			n := len(a.Index) - 1
			b.Logf("push of %s, %s MB: %s s, then indexes in %s s; peak RSS %s MB", a.Case, measure.Megabytes(a.Bytes),
				measure.Figure(a.Push[n]), measure.Figure(a.Index[n]), measure.Megabytes(a.PeakRSS[n]))
		}
		out.After = append(out.After, a)
	}
	for _, pair := range pairs(b.images) {
		n, err := b.next(ctx, pair[0], pair[1])
		if err != nil {
			return err
		}
		out.Next = append(out.Next, *n)
	}
	out.Run = b.since(began)
	b.results.Push = out
	return nil
}

// pushed returns the image of at least three layers whose size is nearest to pushedBytes, and an
// image of the single layer that is nearest.
func (b *bench) pushed() (several, single *image, err error) {
	far := func(n int64) int64 { return max(n-pushedBytes, pushedBytes-n) }
	list := slices.DeleteFunc(slices.Clone(b.images), func(im *image) bool { return len(im.Layers) < 3 })
	if len(list) == 0 {
		return nil, nil, errors.New("no image has three layers")
	}
	several = slices.MinFunc(list, func(x, y *image) int { return cmp.Compare(far(x.Bytes()), far(y.Bytes())) })
	src := slices.MinFunc(distinct(b.images), func(x, y source) int { return cmp.Compare(far(x.Size), far(y.Size)) })
	single, err = b.imageOf(src)
	return several, single, err
}

// imageOf makes an image of one layer of another image.
func (b *bench) imageOf(src source) (*image, error) {
	text, err := os.ReadFile(src.im.Blob(src.im.Config.Digest))
	if err != nil {
		return nil, err
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(src.im.Layers, func(l wire.Descriptor) bool { return l.Digest == src.Digest })
	if at >= len(config.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the configuration of %s has %d diff IDs", src.im, len(config.RootFS.DiffIDs))
	}
	return newImage(b.NewDir(), fmt.Sprintf("layer %d of %s", at+1, src.im), src.Descriptor, src.path(), config.RootFS.DiffIDs[at])
}

// newImage makes a layout with an image of one layer, which it links to.
func newImage(dir, name string, layer wire.Descriptor, path, diffID string) (*image, error) {
	config := imageConfig([]string{diffID})
	c := wire.Descriptor{MediaType: configType, Digest: wire.Digest(config), Size: int64(len(config))}
	manifest, err := json.Marshal(wire.Document{SchemaVersion: 2, MediaType: manifestType, Config: &c, Layers: []wire.Descriptor{layer}})
	if err != nil {
		return nil, err
	}
	im := &image{Series: name, Version: "one layer", Dir: dir, ManifestType: manifestType, Manifest: manifest, Config: c, Layers: []wire.Descriptor{layer}}
	if err := os.MkdirAll(strings.TrimSuffix(im.Blob("sha256:"), "/"), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(im.Blob(c.Digest), config, 0o644); err != nil {
		return nil, err
	}
	return im, os.Symlink(path, im.Blob(layer.Digest))
}

// after pushes an image to a new server and waits for its indexes.
func (b *bench) after(ctx context.Context, im *image, a *After) error {
	s, err := b.server(ctx, 2)
	if err != nil {
		return err
	}
	defer b.drop(s)
	var pushed, index time.Duration
	work, err := s.measured(func() error {
		began := time.Now()
		answered, err := s.pushImage(ctx, im, "bench/push", "1")
		if err != nil {
			return err
		}
		pushed = answered.Sub(began)
		_, err = s.waitIndexes(ctx, "bench/push", im.Layers)
		index = time.Since(answered)
		return err
	})
	if err != nil {
		return err
	}
	a.Push, a.Index = append(a.Push, pushed.Seconds()), append(a.Index, index.Seconds())
	a.ServerCPU, a.PeakRSS = append(a.ServerCPU, work.ServerCPU), append(a.PeakRSS, work.PeakRSS)
	return nil
}

// pairs returns images and their next versions. For each series it takes the pair whose
// new layers are smallest relative to the first image. It sorts the pairs by that share,
// the smallest first.
func pairs(images []*image) [][2]*image {
	best := map[string][2]*image{}
	share := func(p [2]*image) float64 { return float64(newBytes(p[0], p[1])) / float64(p[0].Bytes()) }
	for i, next := range images {
		if i == 0 || images[i-1].Series != next.Series || newBytes(images[i-1], next) == 0 {
			continue
		}
		p := [2]*image{images[i-1], next}
		if old, ok := best[next.Series]; !ok || share(p) < share(old) {
			best[next.Series] = p
		}
	}
	out := slices.Collect(maps.Values(best))
	slices.SortFunc(out, func(a, b [2]*image) int {
		return cmp.Or(cmp.Compare(share(a), share(b)), strings.Compare(a[0].Series, b[0].Series))
	})
	return out[:min(nextPairs, len(out))]
}

// newBytes returns the size of the layers that an image has and the image before it
// lacks.
func newBytes(before, im *image) (n int64) {
	for _, l := range im.Layers {
		if !slices.ContainsFunc(before.Layers, func(o wire.Descriptor) bool { return o.Digest == l.Digest }) {
			n += l.Size
		}
	}
	return n
}

// next measures an image and then its next version, with a new server each time.
func (b *bench) next(ctx context.Context, im, next *image) (*Next, error) {
	out := &Next{Image: im.String(), Next: next.String(), Bytes: im.Bytes(), New: newBytes(im, next)}
	for range b.Run.Rounds {
		if err := b.nextOnce(ctx, im, next, out); err != nil {
			return nil, err
		}
	}
	ratio := out.ratios()
	b.Logf("%s after %s: %s %% of its CPU time", out.Next, out.Image, measure.SpreadOf(ratio))
	return out, nil
}

func (b *bench) nextOnce(ctx context.Context, im, next *image, out *Next) error {
	s, err := b.server(ctx, 2)
	if err != nil {
		return err
	}
	defer b.drop(s)
	for _, x := range []struct {
		im *image
		to *[]float64
	}{{im, &out.Full}, {next, &out.Again}} {
		work, err := s.measured(func() error {
			if _, err := s.pushImage(ctx, x.im, x.im.Repo(), x.im.Version); err != nil {
				return err
			}
			if _, err := s.waitIndexes(ctx, x.im.Repo(), x.im.Layers); err != nil {
				return err
			}
			return s.waitStored(ctx)
		})
		if err != nil {
			return err
		}
		*x.to = append(*x.to, work.ServerCPU)
	}
	return nil
}

func (n *Next) ratios() []float64 {
	var out []float64
	for i := range n.Full {
		out = append(out, 100*n.Again[i]/n.Full[i])
	}
	return out
}

// Head implements [measure.Part].
func (p *Push) Head() string { return p.Run.Head() }

// Title implements [measure.Part].
func (p *Push) Title() string { return "After a push" }

// About implements [measure.Part].
func (p *Push) About() string {
	return "Each push goes to a new server. It ends when the manifest is answered; then the client asks for the layers' indexes every few milliseconds until it has all of them. " +
		"By default, three layers are pushed at a time and two are converted. The next version is pushed to the same server, which knows most of its layers; the pairs are the images with the fewest bytes in new layers, one pair of each series. " +
		"The cost is all CPU time of the server, including the time for receiving the push."
}

// Targets implements [measure.Part].
func (p *Push) Targets() []measure.Target {
	var out []measure.Target
	for i := range p.After {
		a := &p.After[i]
		var peak []float64
		for _, n := range a.PeakRSS {
			peak = append(peak, float64(n)/1e6)
		}
		t := measure.TargetOf("push", "from the push to all indexes, "+a.Case, 1, false, a.Index)
		t.Unit = " s"
		m := measure.TargetOf("push", "peak RSS meanwhile, "+a.Case, 256, false, peak)
		m.Unit, m.Figure = " MB", m.Rounds.Max
		out = append(out, t, m)
	}
	if len(p.Next) == 0 {
		out = append(out, measure.Target{Scenario: "push", What: "CPU of the next version / of the first", Limit: 10, Unit: " %", Missing: true})
	}
	for i := range p.Next {
		t := measure.TargetOf("push", "CPU of "+p.Next[i].Next+" / of "+p.Next[i].Image, 10, false, p.Next[i].ratios())
		t.Unit = " %"
		out = append(out, t)
	}
	return out
}

// Write implements [measure.Part].
func (p *Push) Write(w *strings.Builder) {
	var rows [][]string
	for i := range p.After {
		a := &p.After[i]
		rows = append(rows, []string{a.Case, a.Image, fmt.Sprint(a.Layers), measure.Megabytes(a.Bytes), measure.SpreadOf(a.Push).String(),
			measure.SpreadOf(a.Index).String(), measure.SpreadOf(a.ServerCPU).String(), measure.Megabytes(slices.Max(a.PeakRSS))})
	}
	measure.Table(w, 2, []string{"case", "image", "layers", "MB", "push s", "then indexes s", "server CPU s", "peak RSS MB"}, rows)
	rows = nil
	for i := range p.Next {
		n := &p.Next[i]
		rows = append(rows, []string{n.Image, n.Next, measure.Megabytes(n.Bytes), measure.Megabytes(n.New), measure.SpreadOf(n.Full).String(),
			measure.SpreadOf(n.Again).String(), measure.SpreadOf(n.ratios()).String()})
	}
	if len(rows) > 0 {
		w.WriteString("\n")
		measure.Table(w, 2, []string{"image", "next version", "MB", "new layers MB", "server CPU s", "of the next", "ratio %"}, rows)
	}
}

// Pictures implements [measure.Part].
func (p *Push) Pictures() []measure.Picture { return nil }
