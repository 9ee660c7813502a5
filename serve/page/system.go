package page

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"time"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci/warm"
	"example.org/slipway/registry"
	"example.org/slipway/registry/activity"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/retention"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/mirrors"
	"example.org/slipway/web"
	"example.org/slipway/web/manage"
)

// shown returns what the web page shows of the server itself and what it can do with it.
func (p *system) shown() web.System {
	sys := web.System{Storage: p, Settings: p.settings, Reports: p.o.Config.Web.Reports, Hot: p.hot, Nodes: p.o.Nodes, Tokens: tokens{p.o}, Webhooks: webhooks{p.o}, Quotas: p.o.Root.Quotas, Replication: replicates{p.o}}
	if file := p.o.Config.Log.Audit.File; file != "" {
		sys.Activity = func(ctx context.Context, f activity.Filter) (activity.Report, error) {
			return activity.Read(ctx, file, f)
		}
	}
	sys.Orders = func(ctx context.Context) []warm.Order {
		list, err := p.o.Root.Warming.List(ctx)
		if err != nil { // the page shows what else there is
			return nil
		}
		return list
	}
	if p.o.Root.Cache != nil {
		sys.Caches = p
	}
	if p.o.Root.Mirrors != nil {
		sys.Mirrors = p
	}
	return sys
}

// system implements the interfaces of package web.
type system struct {
	o      *Options
	began  time.Time
	survey surveyor
}

var (
	_ web.Storage = (*system)(nil)
	_ web.Caches  = (*system)(nil)
	_ web.Mirrors = (*system)(nil)
)

// Survey implements web.Storage.
func (p *system) Survey(begin bool) (*web.Survey, bool) {
	if begin {
		return p.survey.last()
	}
	return p.survey.known()
}

// Gear implements web.Storage.
func (p *system) Gear(ctx context.Context) (gearregistry.Status, error) {
	return p.o.Root.Gear.Status(ctx)
}

// errReadOnly says that nothing may be changed.
var errReadOnly = errors.New("storage.maintenance.readonly is enabled, so nothing is changed")

// change calls the function do, which changes the storage, unless changes are not allowed
// now.
func (p *system) change(do func() error) error {
	if p.o.Config.Storage.Maintenance.ReadOnly.Enabled {
		return errReadOnly
	}
	leave, err := p.o.Writes.Enter()
	if err != nil {
		return err
	}
	defer leave()
	defer p.survey.outdate()
	return do()
}

// Collect implements web.Storage.
func (p *system) Collect(ctx context.Context, dry bool, progress func(registry.CollectReport)) (rep registry.CollectReport, err error) {
	if dry {
		return p.o.Root.Collect(ctx, dataroot.GCArgs{DryRun: true}, progress)
	}
	err = p.change(func() error {
		rep, err = p.o.Root.Collect(ctx, dataroot.GCArgs{}, progress)
		return err
	})
	return rep, err
}

// Check implements web.Storage.
func (p *system) Check(ctx context.Context, progress func(check.Report)) (rep check.Report, err error) {
	leave, err := p.o.Writes.Enter() // as for the command's check
	if err != nil {
		return rep, err
	}
	defer leave()
	return p.o.Root.Fsck(ctx, dataroot.FsckArgs{Quick: true}, progress)
}

// Retain implements web.Storage.
func (p *system) Retain(ctx context.Context, dry bool) (rep retention.Report, err error) {
	if dry {
		return p.o.Root.Retain(ctx, dataroot.RetainArgs{DryRun: true})
	}
	err = p.change(func() error {
		rep, err = p.o.Root.Retain(ctx, dataroot.RetainArgs{})
		return err
	})
	return rep, err
}

func (p *system) hot(n int) (list []web.HotImage, since time.Time) {
	pulled, since := p.o.Root.Registry.Hot(n)
	for _, i := range pulled {
		list = append(list, web.HotImage(i))
	}
	return list, since
}

// Cache implements web.Caches.
func (p *system) Cache() web.CacheState {
	st, err := p.o.Root.CacheStatus()
	if err != nil { // there is none
		return web.CacheState{}
	}
	c := web.CacheState{RAM: web.CacheTier(st.RAM), SSD: web.CacheTier(st.SSD), Fetching: st.Fetching, Fetched: st.Fetched, Shared: st.Shared,
		Failed: st.Failed, Damaged: st.Damaged, Written: st.Written, Budget: st.Budget, Usable: st.Usable, Servers: st.Servers}
	if f := st.Prefetch; f != nil {
		c.Prefetch = &web.PrefetchState{Fetched: f.Fetched, Used: f.Used, Cancelled: f.Cancelled, Failed: f.Failed, Bytes: f.Bytes,
			UsedBytes: f.UsedBytes, WastedBytes: f.WastedBytes, Precision: f.Precision(), Recall: f.Recall()}
	}
	return c
}

// Drop implements web.Caches.
func (p *system) Drop(ctx context.Context, image string) (int, error) {
	if image != "" {
		return p.o.Root.DropImage(ctx, image)
	}
	rep, err := p.o.Root.DropCached(dataroot.CacheDropArgs{All: true})
	return rep.Dropped, err
}

// Warm implements web.Caches.
func (p *system) Warm(ctx context.Context, image string, progress func(web.CacheWarmth)) (web.CacheWarmth, error) {
	rep, err := p.o.Root.WarmCache(ctx, dataroot.CacheWarmArgs{Images: []string{image}}, func(r dataroot.CacheWarmReport) { progress(warmth(r)) })
	return warmth(rep), err
}

func warmth(r dataroot.CacheWarmReport) web.CacheWarmth {
	return web.CacheWarmth{Layers: r.Layers, Total: r.LayersTotal, Bytes: r.Bytes, TotalBytes: r.BytesTotal, Held: r.Held, NotKept: r.NotKept, NotLoaded: r.Failed}
}

// Mirrors implements web.Mirrors.
func (p *system) Mirrors() web.MirrorState {
	m := p.o.Root.Mirrors
	return web.MirrorState{Status: m.Status(), MaxBytes: int64(p.o.Config.Proxy.MaxBytes)}
}

// MirrorImages implements web.Mirrors.
func (p *system) MirrorImages(ctx context.Context, after string, n int) ([]registry.MirrorImage, string, error) {
	return p.o.Root.Registry.MirrorImages(ctx, registry.MirrorQuery{Only: p.o.Root.IsMirror, After: after, Limit: n})
}

// PruneMirrors implements web.Mirrors.
func (p *system) PruneMirrors(ctx context.Context, unused time.Duration, pattern string, dry bool) (images []registry.MirrorImage, bytes int64, err error) {
	prune := func() error {
		rep, err := p.o.Root.Mirrors.PruneImages(ctx, mirrors.PruneArgs{NotPulledSince: unused, Pattern: pattern, DryRun: dry})
		for _, i := range rep.Images {
			images = append(images, registry.MirrorImage{Repo: i.Repository, Digest: i.Digest, MediaType: i.MediaType, Tags: i.Tags, Size: i.Size,
				Missing: i.Missing, Stored: i.Stored, LastPull: i.Pulled})
		}
		bytes = rep.Bytes
		return err
	}
	if dry {
		err = prune()
	} else {
		err = p.change(prune)
	}
	return images, bytes, err
}

// settings returns the configuration and facts about the running program.
func (p *system) settings() manage.Settings {
	out := manage.Settings{Rules: p.o.Auth.Rules(), Started: p.began, Build: []manage.Fact{{Name: "Version", Value: p.o.Version}, {Name: "Go", Value: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, b := range info.Settings {
			switch b.Key {
			case "vcs.revision":
				out.Build = append(out.Build, manage.Fact{Name: "Commit", Value: b.Value})
			case "vcs.time":
				out.Build = append(out.Build, manage.Fact{Name: "Of", Value: b.Value})
			}
		}
	}
	for _, v := range p.o.Config.Settings() {
		out.Values = append(out.Values, manage.Setting(v))
	}
	out.Methods = p.methods()
	out.Listeners = p.o.Listeners()
	return out
}

// methods names the methods by which clients authenticate.
func (p *system) methods() []string {
	var list []string
	a := &p.o.Config.Auth
	if a.HTPasswd != nil {
		list = append(list, "passwords")
	}
	if a.LDAP != nil {
		list = append(list, "passwords of the directory "+a.LDAP.URL)
	}
	if p.o.Auth.TokenHandler() != nil {
		list = append(list, "tokens of the built-in service")
	} else if a.Token != nil {
		list = append(list, "tokens of another service")
	}
	for _, o := range a.OIDC {
		list = append(list, "tokens of "+o.Issuer)
	}
	if p.o.Auth.TakesRobots() {
		list = append(list, "API tokens of robots")
	}
	if a.MTLS != nil {
		list = append(list, "client certificates")
	}
	return list
}
