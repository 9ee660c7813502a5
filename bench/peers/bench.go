package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/wire"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o        *options
	net      *lan.LAN
	links    []*lan.Node
	registry *ctrnode.Registry
	ref      string // of the image
	results  *Results
}

const (
	registryPort = "5000"
	repo         = "team/app"
	// convertTimeout bounds the conversion of the image.
	convertTimeout = 10 * time.Minute
)

// prepare starts what all scenarios share: the network, and a registry that has the image.
func (o *options) prepare(ctx context.Context) (b *bench, err error) {
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "swp") // sockets are below it: a short path
	if err != nil {
		return nil, err
	}
	b = &bench{Bench: o.On(binary, dir), o: o, results: &Results{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.clear())
		}
	}()
	if b.net, err = lan.New(ctx); err != nil {
		return b, err
	}
	if err := b.net.Uplink(ctx, o.mbit); err != nil {
		return b, err
	}
	for range o.nodes {
		l, err := b.net.Join(ctx)
		if err != nil {
			return b, err
		}
		if err := l.Shape(ctx, o.mbit); err != nil {
			return b, err
		}
		b.links = append(b.links, l)
	}
	b.registry, err = ctrnode.StartRegistry(ctx, ctrnode.RegistryOptions{Dir: filepath.Join(dir, "registry"), Binary: binary, Addr: b.net.Addr + ":" + registryPort})
	if err != nil {
		return b, err
	}
	b.Logf("pushing an image of %d MiB", o.mbytes)
	c := wire.New(b.registry.Addr)
	defer c.Close()
	if err := imagetest.Incompressible(o.mbytes, o.one).Push(ctx, c, repo, "v1"); err != nil {
		return b, err
	}
	b.ref = b.registry.Addr + "/" + repo + ":v1"
	return b, b.converted(ctx)
}

// converted waits until the registry has made the index of the image's files.
func (b *bench) converted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, convertTimeout)
	defer cancel()
	for {
		out, err := exec.CommandContext(ctx, b.Binary, "status", "--json", "--root", filepath.Join(b.Dir, "registry", "root")).Output()
		if err != nil {
			return fmt.Errorf("slipway status: %w", err)
		}
		var st struct {
			Waiting, Failed, Layers int64
			Active                  []json.RawMessage
		}
		if err := json.Unmarshal(out, &st); err != nil {
			return fmt.Errorf("slipway status: %w", err)
		}
		switch {
		case st.Failed > 0:
			return fmt.Errorf("the registry could not convert %d layers", st.Failed)
		case st.Waiting == 0 && len(st.Active) == 0 && st.Layers > 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the conversion of the image: %w", ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// clear ends everything and removes the directory.
func (b *bench) clear() error {
	var errs []error
	if b.registry != nil {
		errs = append(errs, b.registry.Stop())
	}
	if b.net != nil {
		errs = append(errs, b.net.Close())
	}
	return errors.Join(append(errs, b.Close())...)
}

// chosen returns the systems that are measured, and says of each system which version it is or why it
// is not measured.
func (b *bench) chosen(ctx context.Context) (names, about []string) {
	for _, name := range strings.Split(b.o.systems, ",") {
		if name != nameSpegel {
			names = append(names, name)
			continue
		}
		s := rival.Spegel(name)
		if s.Binary == "" {
			about = append(about, name+": not measured: "+s.Why)
			continue
		}
		names = append(names, name)
		about = append(about, name+": "+s.Version(ctx))
	}
	return names, about
}
