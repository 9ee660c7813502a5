package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"example.org/slipway/registry/auth"
	"example.org/slipway/serve/gate"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/server"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/rbd"
	volumeregistry "example.org/slipway/volume/service"
)

// openVolumes opens the volume side of a data root, if there is one. Its storage is
// opened when it is first needed, so a registry can serve while that storage is
// unavailable.
func (r *root) openVolumes(cfg *config.Config, log *slog.Logger) error {
	c := &cfg.Volumes
	if c.Driver == "" {
		return nil
	}
	if c.Driver == "rbd" && !rbd.Available {
		_, err := rbd.Open(context.Background(), rbd.Options{}) // the error says how to get support for it
		return fmt.Errorf("volumes.driver: %w", err)
	}
	build, err := volumePolicy(c)
	if err != nil {
		return err
	}
	r.volumes = volumeregistry.New(r.cat, r.gear, besideImages{r}, func(ctx context.Context) (block.Store, error) { return openVolumeStore(ctx, c, log) },
		&volumeregistry.Options{Logger: log, Build: build, FS: c.FileSystems(), Workers: c.Workers, CredentialTTL: c.CredentialTTL,
			Copied:   func(repo string) bool { return r.isMirror != nil && r.isMirror(repo) },
			ReadOnly: cfg.Storage.Maintenance.ReadOnly.Enabled})
	return nil
}

var _ volumeregistry.Issuer = rbd.Issuer(nil)

// openVolumeStore opens the configured storage of volumes.
func openVolumeStore(ctx context.Context, c *config.Volumes, log *slog.Logger) (block.Store, error) {
	switch c.Driver {
	case "file":
		return file.Open(c.File.Dir, nil)
	case "rbd":
		o := &c.RBD
		return rbd.Open(ctx, rbd.Options{Conf: o.Conf, User: o.User, Keyring: o.Keyring, Pool: o.Pool, Namespace: o.Namespace, Clones: o.ClonesNamespace, Log: log})
	}
	return nil, fmt.Errorf("there is no driver %q of volumes", c.Driver)
}

// volumePolicy compiles the rules that say which repositories' images are built when they
// are pushed.
func volumePolicy(c *config.Volumes) (func(repo string) bool, error) {
	type rule struct {
		repos func(string) bool
		build bool
	}
	var rules []rule
	for i, r := range c.Rules {
		repos, err := auth.CompilePatterns(r.Repositories)
		if err != nil {
			return nil, fmt.Errorf("volumes.rules.%d.repositories: %w", i, err)
		}
		rules = append(rules, rule{repos, r.Build == "push"})
	}
	return func(repo string) bool {
		for _, r := range rules {
			if r.repos(repo) {
				return r.build
			}
		}
		return c.Build == "push"
	}, nil
}

// besideImages stores records beside images. It exists because the registry is opened
// after the volume side, which receives the registry's events.
type besideImages struct{ r *root }

// PushBlob implements volumeregistry.Registry.
func (b besideImages) PushBlob(ctx context.Context, repo string, d oci.Digest, size int64, r io.Reader) (oci.Descriptor, error) {
	return b.r.reg.PushBlob(ctx, repo, d, size, r)
}

// PutManifest implements volumeregistry.Registry.
func (b besideImages) PutManifest(ctx context.Context, repo string, m oci.PutManifest) (oci.PutResult, error) {
	return b.r.reg.PutManifest(ctx, repo, m)
}

// DeleteManifest implements volumeregistry.Registry.
func (b besideImages) DeleteManifest(ctx context.Context, repo string, d oci.Digest) error {
	return b.r.reg.DeleteManifest(ctx, repo, d)
}

// volumeEvents passes an event to next and then to the volume side.
func volumeEvents(v *volumeregistry.Service, next func(context.Context, registry.Event) error) func(context.Context, registry.Event) error {
	if v == nil {
		return next
	}
	return func(ctx context.Context, e registry.Event) error {
		v.OnEvent(ctx, e)
		return next(ctx, e)
	}
}

// collectVolumes removes the volumes that nothing needs any more, after a garbage
// collection. The volume side itself retries what fails.
func (r *root) collectVolumes(ctx context.Context, now bool, log *slog.Logger) {
	if r.volumes == nil {
		return
	}
	_, err := r.volumes.Collect(ctx, now)
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrLeased) {
		log.Warn("volumes that nothing needs are not removed; it is tried again", "err", err)
	}
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

// VolumesReport is what a data root has of volumes.
type VolumesReport struct {
	volumeregistry.Status
	// Images lists all images, if they were requested.
	Images []volumeregistry.Listed `json:"images,omitempty"`
}

// VolumesArgs are the arguments of [Admin.Volumes].
type VolumesArgs struct {
	// List requests the list of all images.
	List bool
}

// errNoVolumes says that images are not built as volumes here.
var errNoVolumes = errors.New("images are not built as volumes here: volumes.driver is empty")

// HasVolumes reports whether images are built as volumes.
func (a *Admin) HasVolumes() bool { return a.cfg.Volumes.Driver != "" }

// Volumes returns the state of the volume side. It is an error if there is none.
func (a *Admin) Volumes(ctx context.Context, args VolumesArgs) (*VolumesReport, error) {
	if !a.HasVolumes() {
		return nil, errNoVolumes
	}
	if a.local == nil {
		return askServer[VolumesArgs, *VolumesReport](ctx, a, "volumes", args, nil)
	}
	return a.local.volumesReport(ctx, args)
}

func (r *root) volumesReport(ctx context.Context, args VolumesArgs) (*VolumesReport, error) {
	if r.volumes == nil {
		return nil, errNoVolumes
	}
	st, err := r.volumes.Status(ctx)
	rep := &VolumesReport{Status: st}
	const page = 512
	for after := int64(0); err == nil && args.List; {
		var list []volumeregistry.Listed
		list, err = r.volumes.List(ctx, "", after, page)
		if len(list) == 0 {
			break
		}
		after = list[len(list)-1].ID
		rep.Images = append(rep.Images, list...)
	}
	return rep, err
}
