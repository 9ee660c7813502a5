package images

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
)

const (
	// profileFor is how long a tree's profile is kept, and also how long it is remembered
	// that a count of what the tree shares has failed.
	profileFor = time.Minute
	// shareFor is how long the count of what a tree shares is kept. Pushes and
	// conversions change it.
	shareFor = 5 * time.Minute
	// sharePatience is how long a page waits for the count of what an image shares.
	// Counting takes half a second for an image of 100,000 files, so the next page has
	// the result.
	sharePatience = 15 * time.Millisecond
	// shareLimit is how long that count may take. The count holds one of the catalogue's
	// few connections.
	shareLimit = time.Minute
)

// profileOf returns a tree's profile, or nil if there is none.
func (q *request) profileOf(t *fileTree, repo string, manifest oci.Digest) (*profile, error) {
	key, now := repo+"@"+string(manifest), q.opts.Clock()
	t.mu.Lock()
	p := t.profiles[key]
	t.mu.Unlock()
	if p == nil || now.Sub(p.at) > profileFor {
		names, err := q.opts.Files.Profile(q.ctx(), repo, manifest)
		if err != nil {
			return nil, err
		}
		if p = t.newProfile(names); p == nil {
			p = &profile{}
		}
		p.at = now
		q.trees.grew(t, t.keep(key, p))
	}
	if p.Contents == 0 {
		return nil, nil
	}
	return p, nil
}

// shareOf returns what the image shares. For administrators it compares all images. For
// others it compares only the images of the repository, which they may see. It returns
// nil if the result is not known.
func (q *request) shareOf(t *fileTree, repo string, image oci.Digest, layerBytes int64) *shareView {
	v := &shareView{Everywhere: q.Everywhere, LayerBytes: layerBytes}
	if v.Everywhere {
		repo = ""
	}
	s := q.countShare(t, repo, image)
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
		return nil // the error is in the log
	}
	v.Share = s.Share
	return v
}

// countShare returns the counting of what an image shares with others: begun, running or
// complete. All who ask share one count, and only one image is counted at a time. It returns
// nil if too many images wait.
func (p *Pages) countShare(t *fileTree, repo string, image oci.Digest) *shareSum {
	now := p.opts.Clock()
	key := repo + "@" + string(image)
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shares[key]; s != nil && !s.old(now) {
		return s
	}
	select {
	case p.trees.waiting <- struct{}{}:
	default:
		return nil
	}
	if len(t.shares) >= maxKept {
		maps.DeleteFunc(t.shares, func(_ string, s *shareSum) bool { return s.done() })
	}
	s := &shareSum{at: now, counted: make(chan struct{})}
	layers := t.layers
	begun := p.begin(func(ctx context.Context) {
		defer func() { <-p.trees.waiting }()
		defer close(s.counted)
		if s.err = p.count(ctx, s, image, layers, repo); s.err != nil && ctx.Err() == nil {
			p.log.Warn("what an image shares could not be counted", "image", image, "repository", repo, "error", s.err)
		}
	})
	if !begun { // the server is stopping
		<-p.trees.waiting
		return nil
	}
	t.shares[key] = s
	return s
}

// count counts what an image shares when its turn comes.
func (p *Pages) count(ctx context.Context, s *shareSum, image oci.Digest, layers []oci.Digest, repo string) error {
	done, err := take(ctx, p.trees.counting)
	if err != nil {
		return err
	}
	defer done()
	ctx, end := context.WithTimeout(ctx, shareLimit)
	defer end()
	s.Share, err = p.opts.Files.Share(ctx, image, layers, repo)
	return err
}

// shareSum is what the layers of an image share with others at one moment.
type shareSum struct {
	at time.Time
	// counted is closed when the other fields are set.
	counted chan struct{}
	gearfacts.Share
	err error
}

// done reports whether the count has ended, even if it failed.
func (s *shareSum) done() bool {
	select {
	case <-s.counted:
		return true
	default:
		return false
	}
}

// old reports whether to count again.
func (s *shareSum) old(now time.Time) bool {
	switch {
	case !s.done():
		return false
	case s.err != nil:
		return now.Sub(s.at) > profileFor
	}
	return now.Sub(s.at) > shareFor
}

// fillShared sets for each row how many other repositories have the file. It does so only
// for users who may learn about all repositories. Only a few repositories are checked, so
// for other users a number of visible repositories would reveal something about the
// hidden ones.
func (q *request) fillShared(d *treeData, t *fileTree) error {
	if !q.Everywhere {
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
	holders, err := q.opts.Files.Holders(q.ctx(), names, maxHolders)
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
