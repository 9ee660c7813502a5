package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"example.org/slipway/registry/auth"
)

// Pages have live parts, which come as a stream of server-sent events. The data of an
// event is the part's HTML as a JSON string, sent whenever the HTML has changed. Browsers
// reconnect when a stream ends. An event "done" tells them not to reconnect but to load
// the page.
const (
	// maxStreams bounds the number of streams of all clients together.
	maxStreams = 64
	// streamLife is the longest life of a stream.
	streamLife = 15 * time.Minute
	// streamEvery is how often a part is rendered again. beatEvery is how often a client
	// without news gets a comment, and how often its right to see the part is checked
	// again.
	streamEvery = 2 * time.Second
	beatEvery   = 10 * time.Second
	// streamPatience is how long a client may leave an event unread.
	streamPatience = 20 * time.Second
)

// live is a part of a page that updates by itself.
type live struct {
	// page is the name of the template's file, and part is the name of the template in
	// it.
	page, part string
	// data returns what the template gets. done reports that it will not change any more.
	data func(q *request) (data any, done bool, err error)
}

// topics are the live parts by name.
var topics = map[string]live{
	"caches":  {"caches", "live", func(q *request) (any, bool, error) { return q.cachesData(), false, nil }},
	"mirrors": {"mirrors", "live", func(q *request) (any, bool, error) { return q.mirrorsData(false), false, nil }},
	"gear":    {"storage", "live", func(q *request) (any, bool, error) { st, err := q.gearState(); return st, false, err }},
	"job": {"action", "live", func(q *request) (any, bool, error) {
		j := q.h.jobs.get(q.r.FormValue("name"))
		return j, j == nil || !j.Running(), nil
	}},
}

// render returns a part's HTML.
func (l *live) render(q *request, data any) ([]byte, error) {
	var b bytes.Buffer
	if err := q.h.render.pages[l.page].ExecuteTemplate(&b, l.part, data); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // the text is not put into HTML
	err := enc.Encode(b.String())
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// events streams a live part. It ends when the client leaves or may not see the part any
// more, when streamLife is over, or when the server stops.
func (q *request) events() error {
	topic, ok := topics[q.r.FormValue("topic")]
	if !ok {
		return notFound("There are no events of that name.")
	}
	select {
	case q.h.streams <- struct{}{}:
		defer func() { <-q.h.streams }()
	default:
		q.w.Header().Set("Retry-After", "30")
		return &problem{status: http.StatusServiceUnavailable, text: "Too many pages are open; this one does not change by itself now."}
	}
	ctx, cancel := context.WithTimeout(q.ctx(), q.h.timing.life)
	defer cancel()
	q.w.Header().Set("Content-Type", "text/event-stream")
	q.w.Header().Set("X-Accel-Buffering", "no") // for nginx, which would buffer the events
	if q.r.Method == http.MethodHead {
		return nil
	}
	s := &stream{q: q, rc: http.NewResponseController(q.w), topic: topic}
	tick, beat := time.NewTicker(q.h.timing.every), time.NewTicker(q.h.timing.beat)
	defer tick.Stop()
	defer beat.Stop()
	for ok := s.send("retry: 5000\n\n") && s.update(); ok; {
		select {
		case <-ctx.Done():
			return nil
		case <-q.h.streamsEnd:
			return nil
		case <-tick.C:
			ok = s.update()
		case <-beat.C:
			ok = q.stillMay() && s.send(": here\n\n")
		}
	}
	return nil
}

// stillMay reports whether the user is still logged in and may still manage the registry.
func (q *request) stillMay() bool {
	if q.h.access == nil {
		return q.may("", auth.Admin)
	}
	fresh := &request{w: discardHeader{}, r: q.r, h: q.h}
	return fresh.identify() == nil && fresh.may("", auth.Admin)
}

// discardHeader discards headers, which cannot be written into an answer that has begun.
type discardHeader struct{}

func (discardHeader) Header() http.Header         { return http.Header{} }
func (discardHeader) Write(p []byte) (int, error) { return len(p), nil }
func (discardHeader) WriteHeader(int)             {}

// stream is the stream of one client.
type stream struct {
	q     *request
	rc    *http.ResponseController
	topic live
	last  []byte
}

// update sends the part if it has changed. It reports whether the stream continues.
func (s *stream) update() bool {
	data, done, err := s.topic.data(s.q)
	if err != nil {
		return false // the browser asks again
	}
	if done {
		s.send("event: done\ndata: \n\n")
		return false
	}
	html, err := s.topic.render(s.q, data)
	if err != nil {
		s.q.h.log.Error("a template of the web failed", "template", s.topic.page, "error", err)
		return false
	}
	if bytes.Equal(html, s.last) {
		return true
	}
	s.last = html
	return s.send("data: " + string(html) + "\n\n")
}

func (s *stream) send(text string) bool {
	_ = s.rc.SetWriteDeadline(time.Now().Add(streamPatience)) // recorders in tests have no deadline
	if _, err := io.WriteString(s.q.w, text); err != nil {
		return false
	}
	return s.rc.Flush() == nil
}

// EndStreams ends the streams of events for good, because a server that stops waits for
// its answers.
func (h *Handler) EndStreams() { h.endStreams.Do(func() { close(h.streamsEnd) }) }
