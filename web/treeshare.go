package web

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"example.org/slipway/auth"
	"example.org/slipway/gear"
	"example.org/slipway/oci"
)

// profileOf returns a tree's profile; nil where there is none.
func (q *request) profileOf(t *fileTree, repo string, manifest oci.Digest) (*overlay, error) {
	key, now := repo+"@"+string(manifest), q.h.opts.Clock()
	t.mu.Lock()
	o := t.overlay[key]
	t.mu.Unlock()
	if o == nil || now.Sub(o.at) > profileFor {
		names, err := q.h.opts.Files.Profile(q.ctx(), repo, manifest)
		if err != nil {
			return nil, err
		}
		if o = t.newOverlay(names); o == nil {
			o = &overlay{}
		}
		o.at = now
		t.mu.Lock()
		if len(t.overlay) >= maxKept {
			clear(t.overlay)
		}
		t.overlay[key] = o
		t.mu.Unlock()
	}
	if o.Contents == 0 {
		return nil, nil
	}
	return o, nil
}

// sharePatience is how long a page waits for what an image shares to be counted. That
// takes half a second of an image of 100,000 files; the next page has it.
const sharePatience = 15 * time.Millisecond

// shareOf tells what the image shares: who manages the registry is told of all images,
// others of the repository's, which they may see.
func (q *request) shareOf(t *fileTree, repo string, image oci.Digest, layerBytes int64) (*shareView, error) {
	v := &shareView{Everywhere: q.h.access == nil || q.may("", auth.Admin), LayerBytes: layerBytes}
	if v.Everywhere {
		repo = ""
	}
	s := q.countShare(t, repo, image)
	patience := time.NewTimer(sharePatience)
	defer patience.Stop()
	select {
	case <-s.counted:
	case <-patience.C:
		v.Counting = true
		return v, nil
	case <-q.ctx().Done():
		return nil, q.ctx().Err()
	}
	if s.err != nil {
		return nil, s.err
	}
	v.GearShare = s.GearShare
	v.Saved = 1 - share(s.OwnStored, layerBytes)
	return v, nil
}

// countShare returns what an image shares, counted or being counted: once for all who ask.
func (q *request) countShare(t *fileTree, repo string, image oci.Digest) *shareSum {
	now := q.h.opts.Clock()
	key := repo + "@" + string(image)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shares[key]; s != nil && now.Sub(s.at) <= profileFor && !s.failed() {
		return s
	}
	if len(t.shares) >= maxKept {
		clear(t.shares)
	}
	s := &shareSum{at: now, counted: make(chan struct{})}
	t.shares[key] = s
	files, layers := q.h.opts.Files, t.layers
	begun := q.h.begin(func(ctx context.Context) {
		defer close(s.counted)
		s.GearShare, s.err = files.Share(ctx, image, layers, repo)
	})
	if !begun {
		s.err = context.Canceled
		close(s.counted)
	}
	return s
}

// fillShared tells of each row how many other repositories have the file, of those that
// who asks may see.
func (q *request) fillShared(d *treeData, t *fileTree) error {
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
	for k, list := range holders {
		r := &d.Rows[rows[k]]
		for _, repo := range list {
			if repo != d.Repo && q.may(repo, auth.Pull) {
				r.Others++
			}
		}
		r.More = len(list) == maxHolders && r.Others > 0
	}
	return nil
}
