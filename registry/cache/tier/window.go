package tier

import "context"

// windowSize is the size in bytes of the window over an object that is not kept. The
// readers that share the fetch read from the window. A reader that is further behind the
// first one reads for itself.
const windowSize = 4 << 20

// windowPiece is how much of the window is copied at once, in bytes.
const windowPiece = 64 << 10

// window is a ring with the last bytes that a fill received. The fill's mu guards it.
type window struct {
	buf []byte
	end int64 // number of bytes that were ever put in
	// lead is the position of the first reader. The fetch is ahead of it by at most the
	// size of the window.
	lead  int64
	moved chan struct{} // closed when lead has moved; nil if nobody waits
}

// tail returns the position of the first byte that is still there.
func (w *window) tail() int64 { return max(0, w.end-int64(len(w.buf))) }

// copyOut copies bytes from the offset off into p, and returns how many. It copies only
// bytes that have arrived. The caller has made sure that off is within the window.
func (w *window) copyOut(p []byte, off, end int64) int {
	p = p[:min(int64(len(p)), end-off)]
	at := off % int64(len(w.buf))
	n := copy(p, w.buf[at:])
	return n + copy(p[n:], w.buf)
}

// reached notes that a reader is at off.
func (w *window) reached(off int64) {
	if off > w.lead {
		w.lead = off
		if w.moved != nil {
			close(w.moved)
			w.moved = nil
		}
	}
}

// putWindow puts bytes into the window once the first reader has come near enough.
func (f *fill) putWindow(p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.win
	for len(p) > 0 {
		room := w.lead + int64(len(w.buf)) - w.end
		if room <= 0 {
			f.done = w.end
			f.wake()
			if err := f.awaitLead(); err != nil {
				return err
			}
			continue
		}
		n := min(int64(len(p)), room)
		at := w.end % int64(len(w.buf))
		m := copy(w.buf[at:], p[:n])
		copy(w.buf, p[m:n])
		w.end += n
		p = p[n:]
	}
	return nil
}

// awaitLead waits for the first reader to read on. f.mu is held, and released meanwhile.
func (f *fill) awaitLead() error {
	w := f.win
	if w.moved == nil {
		w.moved = make(chan struct{})
	}
	moved := w.moved
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-moved:
		return nil
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}
