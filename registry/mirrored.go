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
	"example.org/slipway/registry/storage"
)

// MirrorQuery says which images of mirrored repositories to list. The zero value lists
// the first page of all repositories.
type MirrorQuery struct {
	// Prefix begins the names of the repositories, such as "docker.io/".
	Prefix string
	// Only, if not nil, reports whether to list a repository. By default all are listed.
	Only func(repo string) bool
	// After is what the previous page returned as next.
	After string
	// Limit is the size of the page; default 100, at most 1000.
	Limit int
	// LeastUsed orders images by last use, oldest first. Otherwise images are ordered by
	// repository, and within it by arrival.
	LeastUsed bool
	// UsedBefore, unless zero, selects images that were last used before that time.
	UsedBefore time.Time
}

// MirrorImage is an image, or an index of images, of a mirrored repository.
type MirrorImage struct {
	Repo      string     `json:"repo"`
	Digest    oci.Digest `json:"digest"`
	MediaType string     `json:"media_type"`
	// Tags are the tags in byte order.
	Tags []string `json:"tags,omitempty"`
	// Size is the number of bytes of the image that are here: manifests, configs and
	// layers. Each content counts once, even if other images share it.
	Size int64 `json:"size"`
	// Missing contents are named but not here. They are fetched when they are requested.
	Missing int64 `json:"missing,omitempty"`
	// Stored is when the image's manifest arrived.
	Stored time.Time `json:"stored"`
	// LastPull is the last pull by a tag, by digest or, for an index, of one of its
	// images. It is zero if there was none.
	LastPull time.Time `json:"last_pull,omitzero"`
}

// Used returns when the image was last used: the later of Stored and LastPull.
func (i MirrorImage) Used() time.Time {
	if i.LastPull.After(i.Stored) {
		return i.LastPull
	}
	return i.Stored
}

// MirrorImages lists images. These are manifests that have a tag, and manifests that are
// not only a part of an image or attached to one. Pulls are counted up to now. next
// identifies the following page, and is empty if there is none.
func (r *Registry) MirrorImages(ctx context.Context, q MirrorQuery) (list []MirrorImage, next string, err error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	q.Limit = min(q.Limit, 1000)
	cq := browse.ImageQuery{Prefix: q.Prefix, Only: q.Only, Limit: q.Limit + 1, LeastUsed: q.LeastUsed, UsedBefore: q.UsedBefore}
	if err := q.readAfter(&cq); err != nil {
		return nil, "", err
	}
	if r.storage.Writable() == nil {
		if err := r.flushPulls(ctx); err != nil {
			return nil, "", fmt.Errorf("record the times of last pulls: %w", err)
		}
	}
	rows, err := browse.New(r.cat.DB).Images(ctx, cq)
	if err != nil {
		return nil, "", storage.ClientError("list images", err)
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

// readAfter parses the position at which a page begins.
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
		return oci.Errorf(oci.CodePaginationNumber, "%.100q is not a position in the list of images", q.After)
	}
	return nil
}

// MirrorUsage is what mirrored repositories hold.
type MirrorUsage struct {
	Repositories int64 `json:"repositories"`
	Manifests    int64 `json:"manifests"`
	// Bytes is the size of the contents that they show, each counted once. OnlyBytes is
	// the size of the contents that no other repository shows.
	Bytes     int64 `json:"bytes"`
	OnlyBytes int64 `json:"only_bytes"`
}

// MirrorUsage counts the contents of all repositories whose names begin with one of the
// prefixes, such as "docker.io/". It reads all their links, which takes about a second
// for 100,000 links. Between calls, MirrorAdded returns what has changed.
func (r *Registry) MirrorUsage(ctx context.Context, prefixes ...string) (MirrorUsage, error) {
	u, err := browse.New(r.cat.DB).Usage(ctx, prefixes...)
	if err != nil {
		return MirrorUsage{}, storage.ClientError("count what mirrors hold", err)
	}
	return MirrorUsage(u), nil
}

// NamedBy returns the manifests of a repository that name the given manifest: the indexes
// that it belongs to.
func (r *Registry) NamedBy(ctx context.Context, repo string, d oci.Digest) ([]oci.Digest, error) {
	rows, err := repair.New(r.cat.DB).NamedBy(ctx, d)
	if err != nil {
		return nil, storage.ClientError("look for what names "+string(d), err)
	}
	var list []oci.Digest
	for _, m := range rows {
		if m.Repo == repo {
			list = append(list, m.Digest)
		}
	}
	return list, nil
}

// MirrorAdded returns about how many bytes this process has added to
// MirrorUsage.OnlyBytes of all mirrored repositories since it began. The number is
// approximate because manifests are not counted when they arrive.
func (r *Registry) MirrorAdded() int64 { return r.mirrored.Load() }
