package client

import (
	"container/list"
	"net/url"
	"sync"
)

// maxUploads bounds how many open uploads are remembered. The upload that was unused longest
// is forgotten first. It can still be found if the registry's upload URLs end in the
// upload's id.
const maxUploads = 10_000

// sizeUnknown is the size of an upload whose last chunk failed.
const sizeUnknown = -1

// upload is the location and the progress of an upload.
type upload struct {
	location *url.URL // replaced, but never modified
	size     int64    // bytes that the registry has, or sizeUnknown
	minChunk int64    // bytes, 0 means any
}

// uploads maps ids to uploads, because in the protocol an upload is an opaque Location.
type uploads struct {
	limit int

	mu    sync.Mutex
	byKey map[uploadKey]*list.Element
	order *list.List // of *uploadEntry, most recently used first
}

type uploadKey struct{ repo, id string }

type uploadEntry struct {
	key uploadKey
	upload
}

func newUploads(limit int) *uploads {
	return &uploads{limit: limit, byKey: make(map[uploadKey]*list.Element), order: list.New()}
}

func (u *uploads) put(repo, id string, up upload) {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := uploadKey{repo, id}
	if e, ok := u.byKey[k]; ok {
		e.Value.(*uploadEntry).upload = up
		u.order.MoveToFront(e)
		return
	}
	u.byKey[k] = u.order.PushFront(&uploadEntry{k, up})
	if u.order.Len() > u.limit {
		delete(u.byKey, u.order.Remove(u.order.Back()).(*uploadEntry).key)
	}
}

func (u *uploads) get(repo, id string) (upload, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	e, ok := u.byKey[uploadKey{repo, id}]
	if !ok {
		return upload{}, false
	}
	u.order.MoveToFront(e)
	return e.Value.(*uploadEntry).upload, true
}

func (u *uploads) drop(repo, id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	k := uploadKey{repo, id}
	if e, ok := u.byKey[k]; ok {
		u.order.Remove(e)
		delete(u.byKey, k)
	}
}
