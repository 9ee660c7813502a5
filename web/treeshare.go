package web

import (
	"encoding/hex"
	"fmt"

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

// shareOf tells what the image shares: who manages the registry is told of all images,
// others of the repository's, which they may see.
func (q *request) shareOf(t *fileTree, repo string, image oci.Digest, layerBytes int64) (*shareView, error) {
	v := &shareView{Everywhere: q.h.access == nil || q.may("", auth.Admin), LayerBytes: layerBytes}
	if v.Everywhere {
		repo = ""
	}
	now := q.h.opts.Clock()
	t.mu.Lock()
	key := repo + "@" + string(image)
	s := t.shares[key]
	t.mu.Unlock()
	if s == nil || now.Sub(s.at) > profileFor {
		n, err := q.h.opts.Files.Share(q.ctx(), image, t.layers, repo)
		if err != nil {
			return nil, err
		}
		s = &shareSum{now, n}
		t.mu.Lock()
		if len(t.shares) >= maxKept {
			clear(t.shares)
		}
		t.shares[key] = s
		t.mu.Unlock()
	}
	v.shareSum = *s
	v.Saved = 1 - share(s.OwnStored, layerBytes)
	return v, nil
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
