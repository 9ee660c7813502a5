package serve

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"time"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/retention"
	"example.org/slipway/serve/mirrors"
	"example.org/slipway/web"
)

// webSystem returns what the web page shows of the server itself and what it can do with
// it.
func (s *Server) webSystem() web.System {
	page := &pageSystem{s: s, began: time.Now()}
	sys := web.System{Storage: page, Settings: page.settings, Reports: s.cfg.Web.Reports, Hot: page.hot}
	if s.nodes != nil {
		sys.Nodes = s.nodes
	}
	if s.root.cache != nil {
		sys.Caches = page
	}
	if s.root.mirrors != nil {
		sys.Mirrors = page
	}
	page.survey.measure = page.measure
	s.page = page
	return sys
}

// pageSystem implements the interfaces of package web.
type pageSystem struct {
	s      *Server
	began  time.Time
	survey surveyor
}

var (
	_ web.Storage = (*pageSystem)(nil)
	_ web.Caches  = (*pageSystem)(nil)
	_ web.Mirrors = (*pageSystem)(nil)
)

// Survey implements web.Storage.
func (p *pageSystem) Survey(begin bool) (*web.Survey, bool) {
	if begin {
		return p.survey.last()
	}
	return p.survey.known()
}

// Gear implements web.Storage.
func (p *pageSystem) Gear(ctx context.Context) (gearregistry.Status, error) {
	return p.s.root.gear.Status(ctx)
}

// errReadOnly says that nothing may be changed.
var errReadOnly = errors.New("storage.maintenance.readonly is enabled, so nothing is changed")

// change calls do, which changes the storage, unless changes are not allowed now.
func (p *pageSystem) change(do func() error) error {
	if p.s.cfg.Storage.Maintenance.ReadOnly.Enabled {
		return errReadOnly
	}
	leave, err := p.s.writes.Enter()
	if err != nil {
		return err
	}
	defer leave()
	defer p.survey.outdate()
	return do()
}

// Collect implements web.Storage.
func (p *pageSystem) Collect(ctx context.Context, dry bool, progress func(registry.CollectReport)) (rep registry.CollectReport, err error) {
	if dry {
		return collect(ctx, p.s.root.reg, GCArgs{DryRun: true}, progress)
	}
	err = p.change(func() error {
		if rep, err = collect(ctx, p.s.root.reg, GCArgs{}, progress); err == nil {
			p.s.root.collectVolumes(ctx, false, p.s.log)
		}
		return err
	})
	return rep, err
}

// Check implements web.Storage.
func (p *pageSystem) Check(ctx context.Context, progress func(check.Report)) (rep check.Report, err error) {
	leave, err := p.s.writes.Enter() // as for the command's check
	if err != nil {
		return rep, err
	}
	defer leave()
	return fsckAll(ctx, p.s.root, FsckArgs{Quick: true}, progress)
}

// Retain implements web.Storage.
func (p *pageSystem) Retain(ctx context.Context, dry bool) (rep retention.Report, err error) {
	if dry {
		return retain(ctx, p.s.cfg, p.s.root.reg, RetainArgs{DryRun: true})
	}
	err = p.change(func() error {
		rep, err = retain(ctx, p.s.cfg, p.s.root.reg, RetainArgs{})
		return err
	})
	return rep, err
}

func (p *pageSystem) hot(n int) (list []web.HotImage, since time.Time) {
	pulled, since := p.s.root.reg.Hot(n)
	for _, i := range pulled {
		list = append(list, web.HotImage(i))
	}
	return list, since
}

// Cache implements web.Caches.
func (p *pageSystem) Cache() web.CacheState {
	st, err := p.s.root.cacheStatus()
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
func (p *pageSystem) Drop(ctx context.Context, image string) (int, error) {
	args := CacheDropArgs{All: image == ""}
	if image != "" {
		layers, err := p.s.root.layersOf(ctx, CacheWarmArgs{Images: []string{image}})
		if err != nil {
			return 0, err
		}
		for _, l := range layers {
			args.Digests = append(args.Digests, l.Digest)
		}
	}
	rep, err := p.s.root.dropCached(args)
	return rep.Dropped, err
}

// Warm implements web.Caches.
func (p *pageSystem) Warm(ctx context.Context, image string, progress func(web.CacheWarmth)) (web.CacheWarmth, error) {
	rep, err := p.s.root.warmCache(ctx, CacheWarmArgs{Images: []string{image}}, func(r CacheWarmReport) { progress(warmth(r)) })
	return warmth(rep), err
}

func warmth(r CacheWarmReport) web.CacheWarmth {
	return web.CacheWarmth{Layers: r.Layers, Total: r.LayersTotal, Bytes: r.Bytes, TotalBytes: r.BytesTotal, Held: r.Held, NotKept: r.NotKept, NotLoaded: r.Failed}
}

// Mirrors implements web.Mirrors.
func (p *pageSystem) Mirrors() web.MirrorState {
	m := p.s.root.mirrors
	return web.MirrorState{Status: m.Status(), MaxBytes: int64(p.s.cfg.Proxy.MaxBytes)}
}

// MirrorImages implements web.Mirrors.
func (p *pageSystem) MirrorImages(ctx context.Context, after string, n int) ([]registry.MirrorImage, string, error) {
	return p.s.root.reg.MirrorImages(ctx, registry.MirrorQuery{Only: p.s.root.isMirror, After: after, Limit: n})
}

// PruneMirrors implements web.Mirrors.
func (p *pageSystem) PruneMirrors(ctx context.Context, unused time.Duration, pattern string, dry bool) (images []registry.MirrorImage, bytes int64, err error) {
	prune := func() error {
		rep, err := p.s.root.mirrors.PruneImages(ctx, mirrors.PruneArgs{NotPulledSince: unused, Pattern: pattern, DryRun: dry})
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
func (p *pageSystem) settings() web.Settings {
	s := p.s
	out := web.Settings{Rules: s.cfg.Auth.Access, Started: p.began, Build: []web.Fact{{Name: "Version", Value: s.version}, {Name: "Go", Value: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, b := range info.Settings {
			switch b.Key {
			case "vcs.revision":
				out.Build = append(out.Build, web.Fact{Name: "Commit", Value: b.Value})
			case "vcs.time":
				out.Build = append(out.Build, web.Fact{Name: "Of", Value: b.Value})
			}
		}
	}
	for _, v := range s.cfg.Settings() {
		out.Values = append(out.Values, web.Setting(v))
	}
	out.Methods = authMethods(s)
	listen := func(name, addr string) {
		out.Listeners = append(out.Listeners, web.Fact{Name: name, Value: addr})
	}
	what := "Clients, without TLS"
	if s.cfg.HTTP.TLS.Enabled() {
		what = "Clients, by TLS"
	}
	listen(what, s.Addr().String())
	if a := s.DebugAddr(); a != nil {
		listen("Metrics and health", a.String())
	}
	if s.peers != nil {
		listen("Other servers", s.peers.ln.Addr().String())
	}
	listen("Administration", adminSocket+" in the data directory")
	return out
}

// authMethods names the methods by which clients authenticate.
func authMethods(s *Server) []string {
	var list []string
	a := &s.cfg.Auth
	if a.HTPasswd != nil {
		list = append(list, "passwords")
	}
	if s.auth.TokenHandler() != nil {
		list = append(list, "tokens of the built-in service")
	} else if a.Token != nil {
		list = append(list, "tokens of another service")
	}
	for _, o := range a.OIDC {
		list = append(list, "tokens of "+o.Issuer)
	}
	if a.MTLS != nil {
		list = append(list, "client certificates")
	}
	return list
}
