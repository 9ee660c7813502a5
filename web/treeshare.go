package web

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog/gearfacts"
)

const (
	// profileFor is how long a tree's profile is kept, and that what it shares could not be
	// counted.
	profileFor = time.Minute
	// shareFor is how long what a tree shares is kept. Pushes and conversions change it.
	shareFor = 5 * time.Minute
	// sharePatience is how long a page waits for what an image shares to be counted. That
	// takes half a second of an image of 100,000 files; the next page has it.
	sharePatience = 15 * time.Millisecond
	// shareLimit is how long that may take: it has one of the catalogue's few connections.
	shareLimit = time.Minute
)

// profileOf returns a tree's profile; nil where there is none.
func (q *request) profileOf(t *fileTree, repo string, manifest oci.Digest) (*profile, error) {
	key, now := repo+"@"+string(manifest), q.h.opts.Clock()
	t.mu.Lock()
	p := t.profiles[key]
	t.mu.Unlock()
	if p == nil || now.Sub(p.at) > profileFor {
		names, err := q.h.opts.Files.Profile(q.ctx(), repo, manifest)
		if err != nil {
			return nil, err
		}
		if p = t.newProfile(names); p == nil {
			p = &profile{}
		}
		p.at = now
		q.h.trees.grew(t, t.keep(key, p))
	}
	if p.Contents == 0 {
		return nil, nil
	}
	return p, nil
}

// everywhere reports whether who asks is told of all repositories: who manages the
// registry, and everybody where all is open.
func (q *request) everywhere() bool { return q.h.access == nil || q.may("", auth.Admin) }

// shareOf tells what the image shares: who manages the registry is told of all images,
// others of the repository's, which they may see. It is nil where that cannot be told.
func (q *request) shareOf(t *fileTree, repo string, image oci.Digest, layerBytes int64) *shareView {
	v := &shareView{Everywhere: q.everywhere(), LayerBytes: layerBytes}
	if v.Everywhere {
		repo = ""
	}
	s := q.h.countShare(t, repo, image)
	if s == nil {
		return nil
	}
	patience := time.NewTimer(sharePatience)
	defer patience.Stop()
	select {
	case <-s.counted:
	case <-patience.C:
		v.Counting = true
		return v
	case <-q.ctx().Done():
		return nil
	}
	if s.err != nil {
		return nil // it is in the log
	}
	v.Share = s.Share
	return v
}

// countShare returns what an image shares, counted or being counted: once for all who
// ask, and of one image at a time. It is nil where too many wait.
func (h *Handler) countShare(t *fileTree, repo string, image oci.Digest) *shareSum {
	now := h.opts.Clock()
	key := repo + "@" + string(image)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shares[key]; s != nil && !s.old(now) {
		return s
	}
	select {
	case h.trees.waiting <- struct{}{}:
	default:
		return nil
	}
	if len(t.shares) >= maxKept {
		maps.DeleteFunc(t.shares, func(_ string, s *shareSum) bool { return s.done() })
	}
	s := &shareSum{at: now, counted: make(chan struct{})}
	layers := t.layers
	begun := h.begin(func(ctx context.Context) {
		defer func() { <-h.trees.waiting }()
		defer close(s.counted)
		if s.err = h.count(ctx, s, image, layers, repo); s.err != nil && ctx.Err() == nil {
			h.log.Warn("what an image shares could not be counted", "image", image, "repository", repo, "error", s.err)
		}
	})
	if !begun { // the server stops
		<-h.trees.waiting
		return nil
	}
	t.shares[key] = s
	return s
}

// count counts what an image shares when its turn comes.
func (h *Handler) count(ctx context.Context, s *shareSum, image oci.Digest, layers []oci.Digest, repo string) error {
	done, err := take(ctx, h.trees.counting)
	if err != nil {
		return err
	}
	defer done()
	ctx, end := context.WithTimeout(ctx, shareLimit)
	defer end()
	s.Share, err = h.opts.Files.Share(ctx, image, layers, repo)
	return err
}

// shareSum is what the layers share with others, of a moment.
type shareSum struct {
	at time.Time
	// counted is closed when the rest is set.
	counted chan struct{}
	gearfacts.Share
	err error
}

// done tells that it was counted, in vain perhaps.
func (s *shareSum) done() bool {
	select {
	case <-s.counted:
		return true
	default:
		return false
	}
}

// old tells that it is to be counted again.
func (s *shareSum) old(now time.Time) bool {
	switch {
	case !s.done():
		return false
	case s.err != nil:
		return now.Sub(s.at) > profileFor
	}
	return now.Sub(s.at) > shareFor
}

// fillShared tells of each row how many other repositories have the file. Only who may
// be told of all of them is: as no more than some are looked at, numbers of those that
// others may see would tell of those that they may not.
func (q *request) fillShared(d *treeData, t *fileTree) error {
	if !q.everywhere() {
		return nil
	}
	var names []gear.Name
	var rows []int
	for i := range d.Rows {
		if e := &t.x.Entries[d.Rows[i].place]; e.File >= 0 && t.x.Files[e.File].Size > 0 {
			names, rows = append(names, t.x.Files[e.File].Name), append(rows, i)
		}
	}
	if len(names) == 0 {
		return nil
	}
	holders, err := q.h.opts.Files.Holders(q.ctx(), names, maxHolders)
	if err != nil {
		return fmt.Errorf("look for who shares %s and others: %w", hex.EncodeToString(names[0][:]), err)
	}
	d.Shared = true
	for k, h := range holders {
		r := &d.Rows[rows[k]]
		for _, repo := range h.Repositories {
			if repo != d.Repo {
				r.Others++
			}
		}
		r.More = h.More
	}
	return nil
}
