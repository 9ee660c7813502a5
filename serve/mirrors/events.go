package mirrors

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"example.org/slipway/registry/mirror"
)

// clientPatience is how long a client may leave what is sent to it unread.
const clientPatience = 10 * time.Second

// feed passes the events of mirrors to its listeners. The zero value is ready to use.
type feed struct {
	mu        sync.Mutex
	listeners map[chan mirror.Event]bool
}

// feedBuffer is how many events a listener may be behind. A listener that is further
// behind loses some, because mirroring waits for no listener.
const feedBuffer = 1024

// publish passes an event to all listeners.
func (f *feed) publish(e mirror.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.listeners {
		select {
		case c <- e:
		default:
		}
	}
}

// listen returns a channel of events and a function that ends it.
func (f *feed) listen() (events <-chan mirror.Event, end func()) {
	c := make(chan mirror.Event, feedBuffer)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listeners == nil {
		f.listeners = map[chan mirror.Event]bool{}
	}
	f.listeners[c] = true
	return c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.listeners, c)
	}
}

// ServeEvents streams events as lines of JSON until the client leaves or the server
// stops. Empty lines tell the client that the stream is alive but nothing has happened.
func (m *Mirrors) ServeEvents(w http.ResponseWriter, r *http.Request) {
	events, end := m.feed.listen()
	defer end()
	w.Header().Set("Content-Type", "application/x-ndjson")
	rc := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	beat := time.NewTicker(clientPatience / 2)
	defer beat.Stop()
	send := func(write func() error) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(clientPatience)) // a socket has deadlines
		return errors.Join(write(), rc.Flush()) == nil
	}
	blank := func() error { _, err := io.WriteString(w, "\n"); return err }
	for ok := send(blank); ok; {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			ok = send(func() error { return enc.Encode(e) })
		case <-beat.C:
			ok = send(blank)
		}
	}
}
