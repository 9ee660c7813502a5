package web

import (
	"context"
	"maps"
	"time"

	"example.org/slipway/oci/warm"
	"example.org/slipway/registry/quota"
	"example.org/slipway/web/manage"
)

// System is what the pages for administrators show. A part that does not exist is nil or
// empty.
type System struct {
	Storage Storage
	Caches  Caches
	// Hot returns at most n of the manifests that were requested most of late, and since
	// when they were counted.
	Hot     func(n int) ([]HotImage, time.Time)
	Mirrors Mirrors
	Nodes   Nodes
	// Orders returns the orders that nodes have images, the last one first.
	Orders   func(ctx context.Context) []warm.Order
	Settings func() manage.Settings
	Tokens   manage.Tokens
	Webhooks manage.Webhooks
	Quotas   Quotas
	// Replication is never nil.
	Replication manage.Replication
	// Activity is nil without an audit log.
	Activity manage.Log
	// Reports is the directory of the reports to show.
	Reports string
}

// Quotas knows the state of quotas. *quota.Limits implements it.
type Quotas interface {
	// Known returns the state of each quota or, with a repository, of the quotas that
	// bound it. It is quick.
	Known(repo string) []quota.Status
}

// timing is how often the live parts do their regular work, and how long they live.
type timing struct{ every, beat, life, sample time.Duration }

// openSystem adds the pages of System and begins their work in the background.
func (h *Handler) openSystem() {
	maps.Copy(h.pages, map[string]page{
		"storage":     {get: (*request).storage, post: (*request).doAction, admin: true},
		"caches":      {get: (*request).caches, post: (*request).doAction, admin: true},
		"mirrors":     {get: (*request).mirrors, post: (*request).doAction, admin: true},
		"replication": {get: (*request).replication, post: (*request).doAction, admin: true},
		"nodes":       {get: (*request).nodes, admin: true},
		"reports":     {get: (*request).reports, admin: true},
		"settings":    {get: (*request).settings, admin: true, exact: true},
		"activity":    {get: (*request).activity, admin: true, exact: true},
		"tokens":      {get: (*request).tokens, post: (*request).doTokens, admin: true, exact: true},
		"events":      {get: (*request).events, admin: true, exact: true},
		"webhooks":    {get: (*request).webhooks, post: (*request).doWebhooks, admin: true, exact: true},
	})
	h.jobs, h.actions = newJobs(h.opts.Clock), actions()
	h.streams, h.streamsEnd = make(chan struct{}, maxStreams), make(chan struct{})
	h.timing = timing{streamEvery, beatEvery, streamLife, sampleEvery}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	if h.opts.System.Caches != nil {
		h.background.Go(func() { h.sampleCache(ctx) })
	}
}

// quotas returns the state of the quotas that bound a repository, or of all if repo is
// empty.
func (h *Handler) quotas(repo string) []quota.Status {
	if h.opts.System.Quotas == nil {
		return nil
	}
	return h.opts.System.Quotas.Known(repo)
}

// here returns the navigation entry to which a page belongs. For a page of the system, it
// is the entry that leads to that page.
func (q *request) here(name string) string {
	switch p := q.pageName(); p {
	case "repo", "image", "tree", "diff", "delete", "remove", "history":
		return "home"
	default:
		if q.h.pages[p].admin {
			return p
		}
	}
	return name
}

// Close ends streams and work under way, and waits for the work. The handler still
// answers requests after that, but begins no work.
func (h *Handler) Close() {
	h.EndStreams()
	h.jobs.close()
	h.images.Close()
	h.stop()
	h.background.Wait()
}
