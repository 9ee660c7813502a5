package registry

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/repair"
)

// MirrorQuery says which images of mirrored repositories to list. The zero value lists
// the first of all repositories.
type MirrorQuery struct {
	// Prefix of the names of repositories, such as "docker.io/".
	Prefix string
	// Only, if not nil, tells which repositories to list; default all.
	Only func(repo string) bool
	// After is what the page before returned as next.
	After string
	// Limit of the page; default 100, at most 1000.
	Limit int
	// LeastUsed orders by last use, the oldest first; else images are ordered by
	// repository, and in it by when they came.
	LeastUsed bool
	// UsedBefore, unless zero: only images last used before.
	UsedBefore time.Time
}

// MirrorImage is an image, or an index of images, of a mirrored repository.
type MirrorImage struct {
	Repo      string     `json:"repo"`
	Digest    oci.Digest `json:"digest"`
	MediaType string     `json:"media_type"`
	// Tags in byte order.
	Tags []string `json:"tags,omitempty"`
	// Size in bytes of what is here of it: manifests, configs and layers, each content
	// once, also those that other images share.
	Size int64 `json:"size"`
	// Missing contents are named and not here: they are fetched when they are asked for.
	Missing int64 `json:"missing,omitempty"`
	// Stored is when its manifest came.
	Stored time.Time `json:"stored"`
	// LastPull by a tag, by digest or, of an index, of one of its images; zero: never.
	LastPull time.Time `json:"last_pull,omitzero"`
}

// Used is when the image was last used: the later of Stored and LastPull.
func (i MirrorImage) Used() time.Time {
	if i.LastPull.After(i.Stored) {
		return i.LastPull
	}
	return i.Stored
}

// MirrorImages lists images: manifests that have a tag, and those that are not only a
// part of an image or attached to one. Pulls are counted up to now. next is for the page
// that follows, and empty if there is none.
func (r *Registry) MirrorImages(ctx context.Context, q MirrorQuery) (list []MirrorImage, next string, err error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	q.Limit = min(q.Limit, 1000)
	cq := browse.ImageQuery{Prefix: q.Prefix, Only: q.Only, Limit: q.Limit + 1, LeastUsed: q.LeastUsed, UsedBefore: q.UsedBefore}
	if err := q.readAfter(&cq); err != nil {
		return nil, "", err
	}
	if r.writable() == nil {
		if err := r.flushPulls(ctx); err != nil {
			return nil, "", fmt.Errorf("record the times of last pulls: %w", err)
		}
	}
	rows, err := browse.New(r.cat.DB).Images(ctx, cq)
	if err != nil {
		return nil, "", ClientError("list images", err)
	}
	more := len(rows) > q.Limit
	if more {
		rows = rows[:q.Limit]
		last := rows[q.Limit-1]
		if next = fmt.Sprintf("%d/%s", last.ID, last.Repo); q.LeastUsed {
			next = fmt.Sprintf("%d/%d", last.ID, last.Used.UnixMilli())
		}
	}
	list = make([]MirrorImage, len(rows))
	for i, m := range rows {
		list[i] = MirrorImage{Repo: m.Repo, Digest: m.Digest, MediaType: m.MediaType, Tags: m.Tags, Size: m.Size,
			Missing: m.Missing, Stored: m.Created, LastPull: m.LastPull}
	}
	return list, next, nil
}

// readAfter takes the place apart at which a page begins.
func (q *MirrorQuery) readAfter(to *browse.ImageQuery) (err error) {
	if q.After == "" {
		return nil
	}
	id, rest, _ := strings.Cut(q.After, "/")
	if to.AfterID, err = strconv.ParseInt(id, 10, 64); err == nil {
		if to.AfterRepo = rest; q.LeastUsed {
			var ms int64
			ms, err = strconv.ParseInt(rest, 10, 64)
			to.AfterRepo, to.AfterUsed = "", time.UnixMilli(ms)
		}
	}
	if err != nil {
		return oci.Errorf(oci.CodePaginationNumber, "%.100q is no place in the list of images", q.After)
	}
	return nil
}

// MirrorUsage is what mirrored repositories hold.
type MirrorUsage struct {
	Repositories int64 `json:"repositories"`
	Manifests    int64 `json:"manifests"`
	// Bytes of the contents they show, each once; OnlyBytes of those that no other
	// repository shows.
	Bytes     int64 `json:"bytes"`
	OnlyBytes int64 `json:"only_bytes"`
}

// MirrorUsage counts what the repositories hold whose names begin with one of the
// prefixes, such as "docker.io/". It reads all their links, which takes about a second
// for 100,000; in between MirrorAdded tells what has changed.
func (r *Registry) MirrorUsage(ctx context.Context, prefixes ...string) (MirrorUsage, error) {
	u, err := browse.New(r.cat.DB).Usage(ctx, prefixes...)
	if err != nil {
		return MirrorUsage{}, ClientError("count what mirrors hold", err)
	}
	return MirrorUsage(u), nil
}

// NamedBy returns the manifests of a repository that name a manifest themselves: the
// indexes that it belongs to.
func (r *Registry) NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error) {
	rows, err := repair.New(r.cat.DB).NamedBy(ctx, d)
	if err != nil {
		return nil, ClientError("look for what names "+string(d), err)
	}
	var list []oci.Digest
	for _, m := range rows {
		if m.Repo == repo {
			list = append(list, m.Digest)
		}
	}
	return list, nil
}

// MirrorAdded tells by how many bytes this process has made MirrorUsage.OnlyBytes of
// all mirrored repositories grow since it began, about: manifests are not counted when
// they come.
func (r *Registry) MirrorAdded() int64 { return r.mirrored.Load() }
