package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"example.org/slipway/registry/mirror"
)

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

// serveEvents streams events as lines of JSON until the client leaves or the server
// stops. Empty lines tell the client that the stream is alive but nothing has happened.
func (m *mirrors) serveEvents(w http.ResponseWriter, r *http.Request) {
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

// MirrorEvents calls each for every event of the server's mirrors from now on. It returns
// when ctx ends, which is no error, or when each returns an error. If each is slower than
// the events come, some events are lost.
func (a *Admin) MirrorEvents(ctx context.Context, each func(mirror.Event) error) error {
	if a.local != nil {
		return errors.New("no server uses this data directory: events are told while one runs")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin.localhost/admin/mirror-events", bytes.NewReader(nil))
	if err != nil {
		return err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // whatever could be read goes into the error
		return fmt.Errorf("the server answered %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	for dec := json.NewDecoder(resp.Body); ; {
		var e mirror.Event
		err := dec.Decode(&e)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return errors.New("the server ended")
		}
		if err := each(e); err != nil {
			return err
		}
	}
}
