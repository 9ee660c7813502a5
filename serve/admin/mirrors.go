package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/serve/mirrors"
)

// openMirrors returns the mirrors of a data root that no server uses.
func (a *Admin) openMirrors() (*mirrors.Mirrors, error) {
	if err := a.local.OpenMirrors(gate.NewWrites()); err != nil {
		return nil, err
	}
	return mirrorsOf(a.local)
}

// mirrorsOf returns the mirrors, or an error if there are none.
func mirrorsOf(r *dataroot.Root) (*mirrors.Mirrors, error) {
	if r.Mirrors == nil {
		return nil, errors.New("no registry is mirrored here; proxy.upstreams of the configuration names them")
	}
	return r.Mirrors, nil
}

// exportMirrors reads what the object store has, not what a cache remembers of it.
func exportMirrors(ctx context.Context, r *dataroot.Root, args mirrors.ExportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	return r.MirrorStore().Export(dataroot.PastCache(ctx), args, progress)
}

// LoadMirrors fetches images from upstreams. An image that cannot be fetched does not
// stop the others; the report names it.
func (a *Admin) LoadMirrors(ctx context.Context, args mirrors.LoadArgs, progress func(mirrors.LoadReport)) (mirrors.LoadReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-load", args, progress)
	}
	m, err := a.openMirrors()
	if err != nil {
		return mirrors.LoadReport{}, err
	}
	return m.LoadImages(ctx, args, progress)
}

// ListMirrors lists a page of the mirrored images.
func (a *Admin) ListMirrors(ctx context.Context, args mirrors.ListArgs) (mirrors.ListReport, error) {
	if a.local == nil {
		return askServer[mirrors.ListArgs, mirrors.ListReport](ctx, a, "mirror-list", args, nil)
	}
	return a.local.MirrorStore().List(ctx, args)
}

// PruneMirrors removes mirrored images.
func (a *Admin) PruneMirrors(ctx context.Context, args mirrors.PruneArgs) (mirrors.PruneReport, error) {
	if a.local == nil {
		return askServer[mirrors.PruneArgs, mirrors.PruneReport](ctx, a, "mirror-prune", args, nil)
	}
	m, err := a.openMirrors()
	if err != nil {
		return mirrors.PruneReport{}, err
	}
	return m.PruneImages(ctx, args)
}

// MirrorStatus returns the state of the mirrors of the server that uses the data root.
func (a *Admin) MirrorStatus(ctx context.Context) (mirrors.Status, error) {
	if a.local == nil {
		return askServer[struct{}, mirrors.Status](ctx, a, "mirror-status", struct{}{}, nil)
	}
	m, err := a.openMirrors()
	if err != nil {
		return mirrors.Status{}, err
	}
	return m.StatusAndUsage(ctx)
}

// ExportMirrors writes mirrored images into a file, for a server without a network.
func (a *Admin) ExportMirrors(ctx context.Context, args mirrors.ExportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-export", args, progress)
	}
	return exportMirrors(ctx, a.local, args, progress)
}

// ImportMirrors adds images to the mirrors, from a file that ExportMirrors has written.
func (a *Admin) ImportMirrors(ctx context.Context, args mirrors.ImportArgs, progress func(airgap.Progress)) (airgap.Progress, error) {
	if a.local == nil {
		return askServer(ctx, a, "mirror-import", args, progress)
	}
	m, err := a.openMirrors()
	if err != nil {
		return airgap.Progress{}, err
	}
	return m.Import(ctx, args, progress)
}

// MirrorEvents calls the function each for every event of the server's mirrors from now
// on. It returns when ctx ends, which is no error, or when the function returns an error.
// If the function is slower than the events come, some events are lost.
func (a *Admin) MirrorEvents(ctx context.Context, each func(mirror.Event) error) error {
	if a.local != nil {
		return errors.New("no server uses this data directory: events are reported only while a server runs")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin.localhost/admin/mirror-events", bytes.NewReader(nil))
	if err != nil {
		return err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // whatever could be read goes into the error
		return fmt.Errorf("the server answered %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	for dec := json.NewDecoder(resp.Body); ; {
		var e mirror.Event
		err := dec.Decode(&e)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return errors.New("the server ended")
		}
		if err := each(e); err != nil {
			return err
		}
	}
}
