package admin

import (
	"context"
	"errors"

	"example.org/slipway/serve/dataroot"
)

// errNoServer says that a command needs a running server.
var errNoServer = errors.New("no server uses this data directory: a cache is its server's, and is looked after while that runs")

// CacheStatus returns the state of the cache of the server that uses the data root.
func (a *Admin) CacheStatus(ctx context.Context) (dataroot.CacheStatus, error) {
	if a.local != nil {
		return dataroot.CacheStatus{}, errNoServer
	}
	return askServer[struct{}, dataroot.CacheStatus](ctx, a, "cache-status", struct{}{}, nil)
}

// DropCached drops contents from the server's cache. Reads under way continue.
func (a *Admin) DropCached(ctx context.Context, args dataroot.CacheDropArgs) (dataroot.CacheDropReport, error) {
	if a.local != nil {
		return dataroot.CacheDropReport{}, errNoServer
	}
	return askServer[dataroot.CacheDropArgs, dataroot.CacheDropReport](ctx, a, "cache-drop", args, nil)
}

// WarmCache fetches the layers of images into the server's cache.
func (a *Admin) WarmCache(ctx context.Context, args dataroot.CacheWarmArgs, progress func(dataroot.CacheWarmReport)) (dataroot.CacheWarmReport, error) {
	if a.local != nil {
		return dataroot.CacheWarmReport{}, errNoServer
	}
	return askServer(ctx, a, "cache-warm", args, progress)
}
