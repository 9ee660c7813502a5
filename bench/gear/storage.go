package gear

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/integration/bench/measure"
)

// Storage compares the space that the images take as layers and as Gear files.
type Storage struct {
	Run    Run   `json:"run"`
	Images int   `json:"images"`
	Layers int   `json:"layers"`
	Bytes  int64 `json:"layer_bytes"` // of the distinct layers, compressed as pushed
	// Fresh is the state when everything was converted. Dense is the state after
	// settling.
	Fresh State `json:"fresh"`
	Dense State `json:"dense"`
	// Push is the cost of pushing and converting everything. Settle is the cost of
	// settling it.
	Push   Work  `json:"push"`
	Settle Work  `json:"settle"`
	Sets   []Set `json:"sets"`
}

// State is what lies in the file store.
type State struct {
	Packs int   `json:"packs"`
	Bytes int64 `json:"bytes"` // of all packs
	// Files is the number of different contents without indexes. IndexBytes is the stored size of
	// the indexes.
	Files      int   `json:"files"`
	IndexBytes int64 `json:"index_bytes"`
	DictBytes  int64 `json:"dict_bytes"`
	TableBytes int64 `json:"table_bytes"`
}

// Work is what an operation cost the server.
type Work struct {
	Seconds   float64 `json:"sec"`
	ServerCPU float64 `json:"server_cpu_sec"`
	OtherCPUs float64 `json:"other_cpus"`
	PeakRSS   int64   `json:"peak_rss"`
}

// Set is a series or a category, as if it were alone in the registry.
type Set struct {
	Category string `json:"category"`
	Series   string `json:"series,omitempty"` // empty: the whole category
	Images   int    `json:"images"`
	Layers   int64  `json:"layer_bytes"`
	Fresh    int64  `json:"fresh_bytes"`
	Dense    int64  `json:"dense_bytes"`
	Index    int64  `json:"index_bytes"` // part of Dense
}

// loaded is a server that holds all images.
type loaded struct {
	*server
	// indexes holds the indexes of layers, and names their names.
	indexes map[string]*gear.Index
	names   map[string]string
	push    Work
	fresh   *contents
	// dense is nil until the store is settled.
	dense  *contents
	settle Work
}

// contents is what the packs of a store hold.
type contents struct {
	stored map[string]int64 // length of each content by name
	State
}

// load returns the server that holds all images, and settles it.
func (b *bench) load(ctx context.Context) (*loaded, error) {
	if b.loaded == nil {
		s, err := b.server(ctx, 2)
		if err != nil {
			return nil, err
		}
		l := &loaded{server: s, indexes: map[string]*gear.Index{}, names: map[string]string{}}
		if err := b.pushAll(ctx, l); err != nil {
			b.drop(s)
			return nil, err
		}
		b.loaded = l
	}
	l := b.loaded
	if l.dense == nil {
		if err := b.settleAll(ctx, l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// unload stops that server.
func (b *bench) unload() {
	if b.loaded != nil {
		b.drop(b.loaded.server)
		b.loaded = nil
	}
}

// pushAll pushes the images one after the other. It waits until an image is converted
// before it pushes the next.
func (b *bench) pushAll(ctx context.Context, l *loaded) error {
	work, err := l.measured(func() error {
		for i, im := range b.images {
			if _, err := l.pushImage(ctx, im, im.Repo(), im.Version); err != nil {
				return err
			}
			names, err := l.waitIndexes(ctx, im.Repo(), im.Layers)
			if err != nil {
				return fmt.Errorf("image %s: %w", im, err)
			}
			maps.Copy(l.names, names)
			if err := l.waitStored(ctx); err != nil {
				return err
			}
			b.Logf("pushed and converted %d of %d: %s", i+1, len(b.images), im)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.push = work
	for _, src := range distinct(b.images) {
		body, err := l.read(ctx, l.gear(src.im.Repo(), "layers/"+src.Digest))
		if err != nil {
			return err
		}
		x, err := gear.Decode(bytes.NewReader(body), nil)
		if err != nil {
			return fmt.Errorf("index of layer %s: %w", src.Digest, err)
		}
		l.indexes[src.Digest] = x
	}
	l.fresh, err = l.contents(ctx)
	return err
}

// settleAll settles everything.
func (b *bench) settleAll(ctx context.Context, l *loaded) error {
	b.Logf("settling %d packs", l.fresh.Packs)
	work, err := l.measured(func() error {
		var rep struct{ Packs int64 }
		return l.command(ctx, &rep, "settle", "--all")
	})
	if err != nil {
		return err
	}
	l.settle = work
	l.dense, err = l.contents(ctx)
	return err
}

// measured returns what a piece of work cost the server.
func (s *server) measured(do func() error) (Work, error) {
	m, err := measure.StartMeter(s.process.Pid())
	if err != nil {
		return Work{}, err
	}
	if err := do(); err != nil {
		return Work{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Work{}, err
	}
	_, peak, err := measure.Memory(m.PIDs)
	return Work{u.Elapsed.Seconds(), u.Server.Seconds(), u.OtherCPUs, peak}, err
}

// contents reads the server's packs that are in use. It compares them with what the server says of
// them, and checks that they hold every content of the indexes.
func (l *loaded) contents(ctx context.Context) (*contents, error) {
	packs, err := l.livePacks()
	if err != nil {
		return nil, err
	}
	c := &contents{stored: map[string]int64{}}
	for _, p := range packs {
		c.Packs++
		c.Bytes += p.size
		c.DictBytes += p.dict
		c.TableBytes += int64(len(p.files)) * packEntry
		for _, f := range p.files {
			c.stored[f.name] = f.stored
		}
	}
	st, err := l.status(ctx)
	if err != nil {
		return nil, err
	}
	if st.Packs != int64(c.Packs) || st.PackBytes != c.Bytes {
		return nil, fmt.Errorf("there are %d packs of %d bytes, and the server says %d of %d", c.Packs, c.Bytes, st.Packs, st.PackBytes)
	}
	return c, c.count(l)
}

// count counts the contents that the indexes name. All of them must exist.
func (c *contents) count(l *loaded) error {
	files := map[gear.Name]bool{}
	seen := map[string]bool{}
	for layer, x := range l.indexes {
		for i := range x.Files {
			f := &x.Files[i]
			if _, ok := c.stored[hex.EncodeToString(f.Name[:])]; f.Size > 0 && !ok {
				return fmt.Errorf("file %x of layer %s is in no pack", f.Name, layer)
			}
			files[f.Name] = true
		}
		name := strings.TrimPrefix(l.names[layer], "sha256:")
		if _, ok := c.stored[name]; !ok {
			return fmt.Errorf("index %s of layer %s is in no pack", name, layer)
		}
		if !seen[name] {
			c.IndexBytes += c.stored[name]
			seen[name] = true
		}
	}
	c.Files = len(files)
	return nil
}

func runStorage(b *bench, ctx context.Context) error {
	began := time.Now()
	l, err := b.load(ctx)
	if err != nil {
		return err
	}
	out := &Storage{Images: len(b.images), Fresh: l.fresh.State, Dense: l.dense.State, Push: l.push, Settle: l.settle}
	for _, src := range distinct(b.images) {
		out.Layers++
		out.Bytes += src.Size
	}
	groups := map[[2]string][]*image{}
	for _, im := range b.images {
		c := b.category(im.Series)
		groups[[2]string{c, im.Series}] = append(groups[[2]string{c, im.Series}], im)
		groups[[2]string{c, ""}] = append(groups[[2]string{c, ""}], im)
	}
	for key, images := range groups {
		out.Sets = append(out.Sets, l.set(key[0], key[1], images))
	}
	slices.SortFunc(out.Sets, func(a, b Set) int {
		return cmp.Or(strings.Compare(a.Category, b.Category), strings.Compare(a.Series, b.Series))
	})
	out.Run = b.since(began)
	b.results.Storage = out
	return nil
}

// set counts what images hold, each content once. What packs hold beside their contents is divided
// in proportion to the contents.
func (l *loaded) set(category, series string, images []*image) Set {
	out := Set{Category: category, Series: series, Images: len(images)}
	seen := map[string]bool{}
	add := func(name string) (fresh, dense int64) {
		if seen[name] {
			return 0, 0
		}
		seen[name] = true
		return l.fresh.stored[name], l.dense.stored[name]
	}
	for _, src := range distinct(images) {
		out.Layers += src.Size
		x := l.indexes[src.Digest]
		for i := range x.Files {
			fresh, dense := add(hex.EncodeToString(x.Files[i].Name[:]))
			out.Fresh, out.Dense = out.Fresh+fresh, out.Dense+dense
		}
		fresh, dense := add(strings.TrimPrefix(l.names[src.Digest], "sha256:"))
		out.Fresh, out.Dense, out.Index = out.Fresh+fresh, out.Dense+dense, out.Index+dense
	}
	out.Fresh, out.Dense = l.fresh.withShare(out.Fresh), l.dense.withShare(out.Dense)
	return out
}

// withShare adds to the size of some contents their share of what packs hold beside
// contents.
func (c *contents) withShare(stored int64) int64 {
	var all int64
	for _, n := range c.stored {
		all += n
	}
	return int64(float64(stored) * float64(c.Bytes) / float64(max(1, all)))
}

// Head implements [measure.Part].
func (s *Storage) Head() string { return s.Run.Head() }

// Title implements [measure.Part].
func (s *Storage) Title() string { return "Storage" }

// About implements [measure.Part].
func (s *Storage) About() string {
	return "All images are pushed, each when the one before is converted, and then settled (`slipway settle --all`). " +
		"Layers are the distinct ones, compressed as they were pushed, which is what a registry without Gear keeps; Gear is all packs, with the indexes in them. " +
		"A series or category is counted as if it were stored alone. Each content counts with the size that it has in the packs of all images; what packs hold beside contents is divided in proportion. " +
		"So series add up to more than their category, and categories to more than all."
}

// Targets implements [measure.Part].
func (s *Storage) Targets() []measure.Target {
	return []measure.Target{
		{Scenario: "storage", What: "saving against layers, settled", Limit: 50, AtLeast: true, Unit: " %", Figure: 100 * saved(s.Bytes, s.Dense.Bytes)},
		{Scenario: "storage", What: "share of indexes, settled", Limit: 1.5, Unit: " %", Figure: 100 * float64(s.Dense.IndexBytes) / float64(max(1, s.Dense.Bytes))},
		{Scenario: "storage", What: "objects for 2,000 files, settled", Limit: 1, Figure: 2000 * float64(s.Dense.Packs) / float64(max(1, s.Dense.Files))},
		{Scenario: "storage", What: "peak RSS, converting", Limit: 256, Unit: " MB", Figure: float64(s.Push.PeakRSS) / 1e6},
		{Scenario: "storage", What: "peak RSS, settling", Limit: 256, Unit: " MB", Figure: float64(s.Settle.PeakRSS) / 1e6},
	}
}

// Write implements [measure.Part].
func (s *Storage) Write(w *strings.Builder) {
	fmt.Fprintf(w, "%d images, %d distinct layers of %s MB.\n\n", s.Images, s.Layers, measure.Megabytes(s.Bytes))
	row := func(name string, st *State) []string {
		return []string{name, measure.Megabytes(st.Bytes), percent(saved(s.Bytes, st.Bytes)),
			measure.Megabytes(st.IndexBytes), percent(float64(st.IndexBytes) / float64(max(1, st.Bytes))),
			measure.Megabytes(st.DictBytes), measure.Megabytes(st.TableBytes), fmt.Sprint(st.Packs), fmt.Sprint(st.Files)}
	}
	measure.Table(w, 1, []string{"Gear", "MB", "saved %", "indexes MB", "indexes %", "dictionaries MB", "tables MB", "packs", "files"},
		[][]string{row("converted", &s.Fresh), row("settled", &s.Dense)})
	w.WriteString("\n")
	cost := func(name string, k *Work) []string {
		return []string{name, measure.Figure(k.Seconds), measure.Figure(k.ServerCPU), measure.Megabytes(k.PeakRSS), measure.Figure(k.OtherCPUs)}
	}
	measure.Table(w, 1, []string{"work", "seconds", "server CPU s", "peak RSS MB", "other CPUs"},
		[][]string{cost("push and convert", &s.Push), cost("settle", &s.Settle)})
	w.WriteString("\nThe peak is that of the process so far. Pushing is limited by the client, which waits for each image.\n\n")
	var rows [][]string
	for _, x := range s.Sets {
		name := x.Series
		if name == "" {
			name = "**all**"
		}
		rows = append(rows, []string{x.Category, name, fmt.Sprint(x.Images), measure.Megabytes(x.Layers), measure.Megabytes(x.Dense),
			percent(saved(x.Layers, x.Fresh)), percent(saved(x.Layers, x.Dense)), percent(float64(x.Index) / float64(max(1, x.Dense)))})
	}
	measure.Table(w, 2, []string{"category", "series", "images", "layers MB", "Gear MB", "saved %, converted", "saved %, settled", "indexes %"}, rows)
}

// Pictures implements [measure.Part].
func (s *Storage) Pictures() []measure.Picture {
	c := measure.Chart{Title: "What images take, in MB"}
	point := func(n int64) []measure.Spread { return []measure.Spread{measure.SpreadOf([]float64{float64(n) / 1e6})} }
	c.Series = append(c.Series, measure.Series{Name: "layers", Points: point(s.Bytes)}, measure.Series{Name: "Gear, converted", Points: point(s.Fresh.Bytes)},
		measure.Series{Name: "Gear, settled", Points: point(s.Dense.Bytes)})
	lines := measure.Chart{Title: "What categories take, in MB", Across: "category", Lines: true,
		Series: []measure.Series{{Name: "layers"}, {Name: "Gear, settled"}}}
	for _, x := range s.Sets {
		if x.Series == "" {
			lines.Columns = append(lines.Columns, x.Category)
			lines.Series[0].Points = append(lines.Series[0].Points, point(x.Layers)[0])
			lines.Series[1].Points = append(lines.Series[1].Points, point(x.Dense)[0])
		}
	}
	return []measure.Picture{{File: "bench-gear-storage.svg", Chart: c}, {File: "bench-gear-categories.svg", Chart: lines}}
}
