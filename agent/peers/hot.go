package peers

import (
	"container/list"
	"sync"
)

// place is a repository of a registry. What came from one is given to those only who may
// read from it.
type place struct{ registry, repo string }

type hotKey struct {
	place
	piece
}

// hot keeps pieces in the form in which they are sent, because a node whose turn it is to
// fetch a piece sends it to many. The piece that was not used for longest goes first.
type hot struct {
	most int

	mu    sync.Mutex
	bytes int
	at    map[hotKey]*list.Element
	order *list.List // of hotEntry, the latest first
}

type hotEntry struct {
	key hotKey
	f   *frame
}

// hotOverhead is about how many bytes an entry takes besides its data.
const hotOverhead = 256

func newHot(most int) *hot {
	return &hot{most: most, at: map[hotKey]*list.Element{}, order: list.New()}
}

// get returns a piece, or nil.
func (h *hot) get(p place, of piece) *frame {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.at[hotKey{p, of}]
	if e == nil {
		return nil
	}
	h.order.MoveToFront(e)
	return e.Value.(hotEntry).f
}

// drop forgets a piece whose bytes are wrong.
func (h *hot) drop(p place, of piece) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.at[hotKey{p, of}]; e != nil {
		h.remove(e)
	}
}

func (h *hot) remove(e *list.Element) {
	old := h.order.Remove(e).(hotEntry)
	delete(h.at, old.key)
	h.bytes -= len(old.f.data) + hotOverhead
}

func (h *hot) add(p place, of piece, f *frame) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := hotKey{p, of}
	if h.at[k] != nil {
		return
	}
	h.at[k] = h.order.PushFront(hotEntry{k, f})
	h.bytes += len(f.data) + hotOverhead
	for h.bytes > h.most && h.order.Len() > 1 {
		h.remove(h.order.Back())
	}
}
