package serve

import (
	"context"
	"errors"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry/history"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/server"
	"example.org/slipway/serve/gate"
	volumeregistry "example.org/slipway/volume/service"
)

// historyAPI serves the history of tags over HTTP.
type historyAPI struct {
	*history.History
	writes *gate.Writes
}

var _ server.History = historyAPI{}

// Restore implements server.History.
func (h historyAPI) Restore(ctx context.Context, repo string, d oci.Digest, tag string) (oci.PutResult, error) {
	return gate.Do(h.writes, func() (oci.PutResult, error) { return h.History.Restore(ctx, repo, d, tag) })
}

// DeleteRepository implements server.History.
func (h historyAPI) DeleteRepository(ctx context.Context, repo string) (int, error) {
	return gate.Do(h.writes, func() (int, error) { return h.History.DeleteRepository(ctx, repo) })
}

// gearAPI serves the Gear side over HTTP.
type gearAPI struct {
	*gearregistry.Service
	writes *gate.Writes
	quotas *quota.Limits
}

var _ server.Gear = gearAPI{}

// Layer implements server.Gear.
func (g gearAPI) Layer(ctx context.Context, repo string, d oci.Digest) (server.GearIndex, error) {
	c, err := g.Service.Layer(ctx, repo, d)
	var pending *gear.PendingError
	if errors.As(err, &pending) {
		return nil, &server.GearPendingError{RetryAfter: pending.RetryAfter, Reason: pending.Reason}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// File implements server.Gear.
func (g gearAPI) File(ctx context.Context, repo string, name [32]byte) (server.GearContent, error) {
	c, err := g.Service.File(ctx, repo, name)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Profile implements server.Gear.
func (g gearAPI) Profile(ctx context.Context, repo string, manifest oci.Digest) (server.GearProfile, error) {
	p, err := g.Predict(ctx, repo, manifest)
	out := server.GearProfile{Names: predict.Names(p.Files), Donor: p.Donor}
	if p.Inferred() {
		out.Origins = predict.Origins(p.Files)
	}
	return out, err
}

// PutFile implements server.Gear.
func (g gearAPI) PutFile(ctx context.Context, repo string, name [32]byte, size int64, body io.Reader) error {
	return g.quotas.Receive(ctx, repo, size, body, func(body io.Reader) error {
		_, err := gate.Do(g.writes, func() (struct{}, error) { return struct{}{}, g.Service.PutFile(ctx, repo, name, size, body) })
		return err
	})
}

// PutFiles implements server.Gear.
func (g gearAPI) PutFiles(ctx context.Context, repo string, stream io.Reader) (n int, err error) {
	err = g.quotas.Receive(ctx, repo, -1, stream, func(stream io.Reader) error {
		n, err = gate.Do(g.writes, func() (int, error) { return g.Service.PutFiles(ctx, repo, stream) })
		return err
	})
	return n, err
}

// ReportProfile implements server.Gear.
func (g gearAPI) ReportProfile(ctx context.Context, repo string, manifest oci.Digest, names [][32]byte, whole bool) error {
	report := g.Service.ReportProfile
	if !whole {
		report = g.ReportSeen
	}
	_, err := gate.Do(g.writes, func() (struct{}, error) { return struct{}{}, report(ctx, repo, manifest, names) })
	return err
}

// volumeAPI serves the volume side over HTTP.
type volumeAPI struct {
	v      *volumeregistry.Service
	writes *gate.Writes
}

var _ server.Volumes = volumeAPI{}

// Image implements server.Volumes.
func (a volumeAPI) Image(ctx context.Context, repo string, manifest oci.Digest) (server.VolumeImage, error) {
	st, err := a.v.Image(ctx, repo, manifest)
	return server.VolumeImage{Records: st.Records, State: st.State, Reason: st.Reason, Done: st.Done, Total: st.Total}, err
}

// List implements server.Volumes.
func (a volumeAPI) List(ctx context.Context, repo string, after int64, n int) (list []server.VolumeListed, last int64, err error) {
	images, err := a.v.List(ctx, repo, after, n)
	for _, v := range images {
		last = v.ID
		list = append(list, server.VolumeListed{Manifest: v.Manifest, FS: v.FS, State: v.State, Reason: v.Reason, Volume: v.Volume, Size: v.Size, Used: v.Used})
	}
	return list, last, err
}

// Queue implements server.Volumes.
func (a volumeAPI) Queue(ctx context.Context, repo string, manifest oci.Digest, fs string) error {
	_, err := gate.Do(a.writes, func() (struct{}, error) { return struct{}{}, a.v.Queue(ctx, repo, manifest, fs) })
	return err
}

// Drop implements server.Volumes.
func (a volumeAPI) Drop(ctx context.Context, repo string, manifest oci.Digest, fs string) error {
	_, err := gate.Do(a.writes, func() (struct{}, error) { return struct{}{}, a.v.Drop(ctx, repo, manifest, fs) })
	return err
}

// Credential implements server.Volumes.
func (a volumeAPI) Credential(ctx context.Context, repo string, manifest oci.Digest, clones bool, refused string) (volref.Credential, error) {
	return a.v.Credential(ctx, repo, manifest, clones, refused)
}
