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

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

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
	addr        string    // once it is started
	until       time.Time // when nothing more is begun; zero: never
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
	s.addr, s.client = addr, wire.New(addr)
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

// inTime returns an error if nothing more is to be begun.
func (s *server) inTime(what string) error {
	if !s.until.IsZero() && time.Now().After(s.until) {
		return fmt.Errorf("%s: %w", what, errUnfinished)
	}
	return nil
}

// errUnfinished says that another run must continue.
var errUnfinished = errors.New("the time is over; the same command continues from here")

// await asks for the status until done. It fails when nothing changes for a long time, or
// when the time is over.
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
		if err := s.inTime(what); err != nil {
			return st, err
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

// settle waits until all layers are converted, and settles all packs.
func (s *server) settle(ctx context.Context) error {
	st, err := s.await(ctx, "convert", func(st *status) bool { return st.Waiting == 0 && len(st.Active) == 0 })
	if err != nil {
		return err
	}
	if st.Failed > 0 {
		return fmt.Errorf("%d layers were not converted", st.Failed)
	}
	within := ctx
	if !s.until.IsZero() {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, s.until)
		defer cancel()
	}
	err = s.run(within, &struct{}{}, "settle", "--all")
	if err != nil && ctx.Err() == nil && within.Err() != nil { // the packs that are done stay done
		return s.inTime("settle")
	}
	return err
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

// stored measures the directory of a server that is running and changes nothing.
func (s *server) stored(ctx context.Context) (State, error) {
	var st status
	if err := s.run(ctx, &st, "status"); err != nil {
		return State{}, err
	}
	return s.state(st.PackBytes)
}

// state measures the directory, with the size of the packs that are in use.
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
