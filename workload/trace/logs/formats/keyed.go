package formats

import (
	"strings"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// keyed says under which names a format of names and values has the fields of a record.
// If there are several names, the first one that a line has counts.
type keyed struct {
	// loose says that the names are in the form that the function loose returns.
	loose bool
	// is reports whether a line describes an answered request.
	is func(*Pairs) bool
	// time is the time of the end, or of the arrival.
	time    []string
	arrival bool
	// duration is a number of units, or includes its unit.
	duration []string
	unit     time.Duration
	// request is a request line. A format without one has its parts.
	request, method, uri, query, proto []string
	client                             []string
	status, written, received          []string
	agent, referer, user, id, host     []string
}

// parse reads a line.
func (k *keyed) parse(l *Line, rec *trace.Record) error {
	p := l.Pairs()
	if p == nil {
		return notUnderstood("it is not a JSON object")
	}
	if k.loose {
		p = p.loose()
	}
	if !k.is(p) {
		return notRequest("it is of something else: %.60q", p.Get("msg", "message", "level"))
	}
	request := p.Get(k.request...)
	if request == "" {
		uri := p.Get(k.uri...)
		if query := p.Get(k.query...); query != "" && query != "-" && !strings.Contains(uri, "?") {
			uri += "?" + query
		}
		if err := setTarget(p.Get(k.method...), uri, p.Get(k.proto...), rec); err != nil {
			return err
		}
	} else if err := setRequest(request, rec); err != nil {
		return err
	}
	var ok bool
	if client := k.clientOf(p); client != "" {
		if rec.RemoteAddr, ok = values.Client(client); !ok {
			return notUnderstood("the client is %.60q", client)
		}
	}
	rec.Time = l.When
	if when := p.Get(k.time...); when != "" {
		if rec.Time, ok = values.Time(when); !ok {
			return notUnderstood("the time is %.40q", when)
		}
	} else if rec.Time.IsZero() {
		return notUnderstood("it has no time")
	}
	if err := k.answer(p, rec); err != nil {
		return err
	}
	rec.UserAgent, rec.Referer, rec.User = values.Dash(p.Get(k.agent...)), values.Dash(p.Get(k.referer...)), values.Dash(p.Get(k.user...))
	rec.ID, rec.Host = values.Dash(p.Get(k.id...)), values.Dash(p.Get(k.host...))
	return nil
}

// clientOf returns the field that names the client: the first one that is not "-".
func (k *keyed) clientOf(p *Pairs) string {
	for _, name := range k.client {
		if v := p.Get(name); v != "" && v != "-" {
			return v
		}
	}
	return ""
}

// answer reads the status, the sizes and the duration.
func (k *keyed) answer(p *Pairs, rec *trace.Record) error {
	status, written := p.Get(k.status...), p.Get(k.written...)
	if status == "" {
		status = "0"
	}
	if err := setAnswer(status, written, rec); err != nil {
		return err
	}
	if written == "" {
		rec.Written = trace.Unknown
	}
	if err := setReceived(p.Get(k.received...), rec); err != nil {
		return err
	}
	took := p.Get(k.duration...)
	if took == "" || took == "-" {
		return nil
	}
	d, ok := values.Duration(took, k.unit)
	if !ok {
		return notUnderstood("the duration is %.40q", took)
	}
	if rec.Duration = d; !k.arrival {
		rec.Time = rec.Time.Add(-d)
	}
	return nil
}
