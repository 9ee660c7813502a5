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

// The live parts of pages: a stream of server-sent events whose data is, as a string of
// JSON, the part's HTML, whenever it has changed. Browsers connect again when a stream
// has ended; an event "done" tells them not to, and to load the page.
const (
	// maxStreams bounds the streams of all clients.
	maxStreams = 64
	// streamLife is when a stream ends.
	streamLife = 15 * time.Minute
	// streamEvery is how often a part is made anew, beatEvery how often a client that has
	// nothing to be told is sent a comment, and whether it still may look is asked.
	streamEvery = 2 * time.Second
	beatEvery   = 10 * time.Second
	// streamPatience is how long a client may leave an event unread.
	streamPatience = 20 * time.Second
)

// live is a part of a page that changes by itself.
type live struct {
	// page and part are the names of the template's file and of the template in it.
	page, part string
	// data is what the template gets; done, that it will not change any more.
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
	enc.SetEscapeHTML(false) // it is not put into HTML
	err := enc.Encode(b.String())
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// events streams a live part until the client leaves, may not look any more, the
// stream's life is over, or the server stops.
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
	q.w.Header().Set("X-Accel-Buffering", "no") // of nginx, which would gather them
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

// stillMay reports whether the one who asked is still logged in and manages the registry.
func (q *request) stillMay() bool {
	if q.h.access == nil {
		return q.may("", auth.Admin)
	}
	fresh := &request{w: discardHeader{}, r: q.r, h: q.h}
	return fresh.identify() == nil && fresh.may("", auth.Admin)
}

// discardHeader takes what must not be written into an answer that has begun.
type discardHeader struct{}

func (discardHeader) Header() http.Header         { return http.Header{} }
func (discardHeader) Write(p []byte) (int, error) { return len(p), nil }
func (discardHeader) WriteHeader(int)             {}

// stream is one client's.
type stream struct {
	q     *request
	rc    *http.ResponseController
	topic live
	last  []byte
}

// update sends the part if it has changed, and reports whether the stream goes on.
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
	_ = s.rc.SetWriteDeadline(time.Now().Add(streamPatience)) // recorders in tests have none
	if _, err := io.WriteString(s.q.w, text); err != nil {
		return false
	}
	return s.rc.Flush() == nil
}

// EndStreams ends the streams of events, for good: a server that stops waits for its
// answers.
func (h *Handler) EndStreams() { h.endStreams.Do(func() { close(h.streamsEnd) }) }
