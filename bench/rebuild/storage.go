package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// Storage says what a registry's directory takes before and after its layers are dropped.
type Storage struct {
	Run    Run   `json:"run"`
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

// State is what lies in the registry's directory, in bytes. Packs that settling has
// replaced stay for some minutes and are not counted.
type State struct {
	Packs     int64 `json:"pack_bytes"`
	Parity    int64 `json:"parity_bytes"`
	Catalogue int64 `json:"catalogue_bytes"`
	Rest      int64 `json:"rest_bytes"` // blobs, manifests
}

// all returns the sum.
func (s State) all() int64 { return s.Packs + s.Parity + s.Catalogue + s.Rest }

// status is what the program says of a registry.
type status struct {
	Waiting, Failed int64
	Active          []json.RawMessage
	PackBytes       int64 `json:"pack_bytes"`
	Recipes         struct {
		Layers, Bytes, Waiting, Refused int64
		RecipeBytes                     int64 `json:"recipe_bytes"`
		RefusedBytes                    int64 `json:"refused_bytes"`
	}
}

// server is a registry that is running.
type server struct {
	binary, dir string
	process     *proc.Process
	client      *wire.Client
}

const (
	readyTimeout = time.Minute
	// pollEvery is the time between two looks at a server. stuck is how often in turn nothing
	// may have changed while layers are converted or dropped; it is no time, because the whole
	// run may be suspended.
	pollEvery = 500 * time.Millisecond
	stuck     = 1200
	// steady is how often in turn parity must have been the same before it counts. Passes are
	// a second apart.
	steady = 20
	// leastDropped is the default size of the smallest layer that is dropped:
	// storage.rebuild.least_bytes.
	leastDropped = 64 << 10
)

// dropping is how a server drops layers as soon as it can.
const dropping = "cold_after: 1ms, again: 1ms, interval: 1s, least_rate: 0, share: 100"

// start starts a server on the directory. rebuild is what its configuration says of dropping
// layers.
func (s *server) start(ctx context.Context, rebuild string) error {
	text := "version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nstorage: {rebuild: {" + rebuild + "}}\n"
	if err := os.WriteFile(s.config(), []byte(text), 0o600); err != nil {
		return err
	}
	addr, err := slipway.FindAddr()
	if err != nil {
		return err
	}
	debug, err := slipway.FindAddr()
	if err != nil {
		return err
	}
	cmd := exec.Command(s.binary, "serve", "--config", s.config(), "--root", s.root(), "--addr", addr, "--debug-addr", debug)
	cmd.Dir, cmd.Env = s.dir, s.env()
	if s.process, err = proc.Launch(cmd, filepath.Join(s.dir, "output")); err != nil {
		return err
	}
	if err := s.process.AwaitURL(ctx, "http://"+debug+"/readyz", readyTimeout); err != nil {
		return fmt.Errorf("start the server: %w; it printed:\n%s", errors.Join(err, s.process.Stop(readyTimeout)), s.process.Log(4096))
	}
	s.client = wire.New(addr)
	return nil
}

func (s *server) stop() error {
	s.client.Close()
	return s.process.Stop(readyTimeout)
}

func (s *server) root() string   { return filepath.Join(s.dir, "root") }
func (s *server) config() string { return filepath.Join(s.dir, "config.yml") }
func (s *server) env() []string  { return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir} }

// run runs a subcommand on the server's data, and reads the JSON it prints.
func (s *server) run(ctx context.Context, into any, args ...string) error {
	cmd := exec.CommandContext(ctx, s.binary, append(args, "--json", "--config", s.config(), "--root", s.root())...)
	cmd.Env = s.env()
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err != nil {
		return fmt.Errorf("slipway %s: %w", args[0], err)
	}
	return json.Unmarshal(out, into)
}

// await asks for the status until done. It fails when nothing changes for a long time.
func (s *server) await(ctx context.Context, what string, done func(st *status) bool) (st status, err error) {
	last, same := "", 0
	for {
		st = status{}
		if err := s.run(ctx, &st, "status"); err != nil {
			return st, err
		}
		if done(&st) {
			return st, nil
		}
		if now := fmt.Sprint(st); now != last {
			last, same = now, 0
		} else if same++; same > stuck {
			return st, fmt.Errorf("%s: nothing has changed for %v: %s", what, stuck*pollEvery, last)
		}
		if err := pause(ctx); err != nil {
			return st, err
		}
	}
}

// pause waits until it is time for another look.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollEvery):
		return nil
	}
}

// protected waits until a server has made the parity of its packs, or deleted all of it, and
// returns the state then.
func (s *server) protected(ctx context.Context, packs int64, parity bool) (last State, err error) {
	for same := 0; same < steady; {
		st, err := s.state(packs)
		if err != nil {
			return st, err
		}
		if st.Parity == last.Parity && parity == (st.Parity > 0) {
			same++
		} else {
			same = 0
		}
		last = st
		if err := pause(ctx); err != nil {
			return st, err
		}
	}
	return last, nil
}

// state measures the directory.
func (s *server) state(packs int64) (State, error) {
	st := State{Packs: packs}
	err := filepath.WalkDir(s.root(), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a temporary file
			return nil
		case err != nil:
			return err
		case d.IsDir():
			if strings.HasSuffix(path, "slipway/gear/packs") {
				return fs.SkipDir
			}
			return nil
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !fi.Mode().IsRegular() {
			return err
		}
		switch dir := filepath.Dir(path); {
		case strings.HasSuffix(dir, "slipway/gear/parity"):
			st.Parity += fi.Size()
		case strings.HasPrefix(d.Name(), "catalog.db"):
			st.Catalogue += fi.Size()
		default:
			st.Rest += fi.Size()
		}
		return nil
	})
	return st, err
}

func runStorage(b *bench, ctx context.Context) (err error) {
	began := time.Now()
	s := &server{binary: b.Binary, dir: b.NewDir()}
	defer b.Remove(s.dir)
	if err := os.MkdirAll(s.root(), 0o700); err != nil {
		return err
	}
	out := &Storage{Images: len(b.images)}
	for _, l := range b.layers() {
		out.Layers++
		out.Bytes += l.Size
	}
	for _, step := range []struct {
		rebuild string
		do      func(context.Context, *server, *Storage) error
	}{
		{"", b.fill},
		{dropping, b.drop},
		{dropping + ", parity: 0", b.bare},
	} {
		if err := s.start(ctx, step.rebuild); err != nil {
			return err
		}
		if err := errors.Join(step.do(ctx, s, out), s.stop()); err != nil {
			return err
		}
	}
	out.Run = b.since(began)
	b.results.Storage = out
	return nil
}

// fill pushes everything, and settles it.
func (b *bench) fill(ctx context.Context, s *server, out *Storage) error {
	for _, im := range b.images {
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
		b.Logf("pushed %s", im)
	}
	if _, err := s.await(ctx, "convert", func(st *status) bool { return st.Waiting == 0 && len(st.Active) == 0 }); err != nil {
		return err
	}
	b.Logf("settling")
	if err := s.run(ctx, &struct{}{}, "settle", "--all"); err != nil {
		return err
	}
	var st status
	err := s.run(ctx, &st, "status")
	if err == nil && st.Failed > 0 {
		err = fmt.Errorf("%d layers were not converted", st.Failed)
	}
	if err == nil {
		out.Before, err = s.state(st.PackBytes)
	}
	return err
}

// drop waits until all layers are dropped or refused, and pulls all images.
func (b *bench) drop(ctx context.Context, s *server, out *Storage) error {
	var large int64
	for _, l := range b.layers() {
		if l.Size >= leastDropped {
			large++
		}
	}
	b.Logf("dropping %d layers", large)
	st, err := s.await(ctx, "drop", func(st *status) bool { return st.Recipes.Layers+st.Recipes.Refused >= large && st.Recipes.Waiting == 0 })
	if err != nil {
		return err
	}
	// Recipes are in packs of their own until these are settled.
	if err := s.run(ctx, &struct{}{}, "settle", "--all"); err != nil {
		return err
	}
	if err := s.run(ctx, &st, "status"); err != nil {
		return err
	}
	out.Dropped, out.DroppedBytes, out.RecipeBytes = st.Recipes.Layers, st.Recipes.Bytes, st.Recipes.RecipeBytes
	out.Refused, out.RefusedBytes = st.Recipes.Refused, st.Recipes.RefusedBytes
	if out.After, err = s.protected(ctx, st.PackBytes, true); err != nil {
		return err
	}
	b.Logf("pulling")
	for _, im := range b.images {
		m, err := s.client.CheckImage(ctx, im.Repo(), im.Version)
		if err != nil {
			return err
		}
		if wire.Digest(m.Bytes) != im.Digest {
			return fmt.Errorf("%s has another digest", im)
		}
		out.Pulled++
	}
	return nil
}

// bare waits until parity is deleted.
func (b *bench) bare(ctx context.Context, s *server, out *Storage) error {
	var st status
	err := s.run(ctx, &st, "status")
	if err == nil {
		out.Bare, err = s.protected(ctx, st.PackBytes, false)
	}
	return err
}

// Head implements [measure.Part].
func (s *Storage) Head() string { return s.Run.Head() }

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
