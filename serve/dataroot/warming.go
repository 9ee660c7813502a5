package dataroot

import (
	"context"
	"fmt"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/warm"
	"example.org/slipway/registry"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/warming"
)

// openWarming opens the orders that nodes have images.
func (r *Root) openWarming(enter func() (leave func(), err error)) error {
	rules, err := warmRules(r.cfg.Warm.Rules)
	if err != nil {
		return err
	}
	r.Warming = warming.New(r.Catalog.DB, warming.Options{Resolve: r.imageDigest, Ready: r.readyImage, Rules: rules, Enter: enter, Logger: r.log})
	return nil
}

func warmRules(list []config.WarmRule) (rules []warming.Rule, err error) {
	for i := range list {
		c := &list[i]
		rule := warming.Rule{Request: warm.Request{Nodes: &c.Nodes, All: c.All, Seconds: int64(c.For / time.Second)}}
		if rule.Matches, err = c.Matches(); err != nil {
			return nil, fmt.Errorf("warm.rules[%d]: %w", i, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// warmEvents returns a hook that makes the orders of pushed tags, in addition to next.
func warmEvents(w *warming.Service, next func(context.Context, registry.Event) error) func(context.Context, registry.Event) error {
	return func(ctx context.Context, e registry.Event) error {
		if e.Action == registry.ActionPush && e.Tag != "" && !e.Blob && !e.Mirrored {
			w.Pushed(ctx, e.Repo, e.Tag)
		}
		return next(ctx, e)
	}
}

// imageDigest returns the digest of an image that clients can pull.
func (r *Root) imageDigest(ctx context.Context, repo, ref string) (oci.Digest, error) {
	d, err := r.Served().ResolveManifest(ctx, repo, ref)
	return d.Digest, err
}

// readyImage fetches an image from its upstream if the repository is a mirror, and its
// layers into the cache if there is one.
func (r *Root) readyImage(ctx context.Context, repo string, d oci.Digest, progress func(warm.Progress)) error {
	image := repo + "@" + string(d)
	if r.Mirrors != nil && r.IsMirror(repo) {
		err := r.Mirrors.Load(ctx, image, &mirror.LoadOptions{Progress: func(p mirror.Progress) {
			progress(warm.Progress{Files: int64(p.Blobs), FilesTotal: int64(p.Total), Bytes: p.Bytes, BytesTotal: p.TotalBytes})
		}})
		if err != nil {
			return err
		}
	}
	if r.Cache == nil {
		return nil
	}
	_, err := r.WarmCache(ctx, CacheWarmArgs{Images: []string{image}}, func(p CacheWarmReport) {
		progress(warm.Progress{Files: int64(p.Layers), FilesTotal: int64(p.LayersTotal), Bytes: p.Bytes, BytesTotal: p.BytesTotal})
	})
	return err
}
