package logs

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// line is a line of a log from which the collectors' additions are removed.
type line struct {
	formats.Line
	// dated says that When has a year.
	dated bool
	// part says that the rest comes with the next line of the same stream.
	part bool
	// stream is 1 for what a container wrote to standard error.
	stream int
}

// maxWraps bounds the additions of several collectors around one line.
const maxWraps = 6

// dockerPiece is the size of the pieces into which docker's json-file and journald split lines.
const dockerPiece = 16 << 10

// unwrap removes what log collectors put around a line: times, the names of hosts, pods, containers
// and programs, JSON, colours. A time without a year lies within the twelve months before now.
func (l *line) unwrap(raw []byte, now time.Time) {
	l.SetText(raw)
	l.When, l.dated, l.part, l.stream = time.Time{}, false, false, 0
	if bytes.IndexByte(raw, 0x1b) >= 0 || bytes.Contains(raw, []byte("#033[")) {
		l.Text = withoutColours(raw)
	}
	for range maxWraps {
		l.Text = bytes.TrimPrefix(bytes.TrimLeft(l.Text, " \t"), []byte("\xef\xbb\xbf"))
		if len(l.Text) == 0 || !l.unwrapOnce(now) {
			return
		}
	}
}

// unwrapOnce removes one addition and reports whether there was one.
func (l *line) unwrapOnce(now time.Time) bool {
	b := l.Text
	switch c := b[0]; {
	case c == '{':
		if rest, ok := cutLabels(b); ok {
			l.Text = rest
			return true
		}
		return l.unwrapObject()
	case c == '<':
		return l.unwrapPriority(now)
	case c == '[':
		if rest, ok := cutPod(b); ok {
			l.Text = rest
			return true
		}
		return false
	case c >= '0' && c <= '9' && l.unwrapDated():
		return true
	case c >= 'A' && c <= 'Z' && l.unwrapStamp(now):
		return true
	}
	if tab := bytes.Index(b[:min(len(b), 256)], []byte("\t{")); tab >= 0 { // after the tag of Fluentd, or Caddy's level
		l.Text = b[tab+1:]
		return true
	}
	if rest, ok := cutService(b); ok {
		l.Text = rest
		return true
	}
	return false
}

// cutPod cuts the prefix of kubectl logs --prefix: [pod/NAME/CONTAINER].
func cutPod(b []byte) ([]byte, bool) {
	end := bytes.Index(b[:min(len(b), 512)], []byte("] "))
	if end < 0 || bytes.IndexByte(b[:end], '/') < 0 || bytes.ContainsAny(b[:end], " \"") {
		return b, false
	}
	return b[end+2:], true
}

// cutLabels cuts the labels that logcli of Loki puts in front of a line: {app="registry",pod="x"}.
func cutLabels(b []byte) ([]byte, bool) {
	if len(b) < 2 || b[1] == '"' { // JSON
		return b, false
	}
	for rest := b[1:]; ; {
		i := bytes.IndexByte(rest, '=')
		if i < 1 || bytes.ContainsAny(rest[:i], `"{}:`) {
			return b, false
		}
		_, after, ok := values.Quoted(rest[i+1:])
		switch rest = bytes.TrimLeft(after, " "); {
		case !ok || len(rest) == 0:
			return b, false
		case rest[0] == '}':
			return rest[1:], true
		}
		rest = rest[1:]
	}
}

// cutService cuts what docker compose and supervisors put in front of a line: a name, perhaps the
// stream, blanks and a bar.
func cutService(b []byte) ([]byte, bool) {
	bar := bytes.Index(b[:min(len(b), 256)], []byte("| "))
	if bar < 1 || b[bar-1] != ' ' && b[bar-1] != '\t' {
		return b, false
	}
	name := bytes.TrimRight(b[:bar], " \t")
	name = bytes.TrimSuffix(bytes.TrimSuffix(name, []byte(" stdout")), []byte(" stderr"))
	if len(name) == 0 {
		return b, false
	}
	for _, c := range name {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"'{}[]()=|`, c) >= 0 {
			return b, false
		}
	}
	return b[bar+2:], true
}

// unwrapDated cuts a time with a year and what stands between it and the line.
func (l *line) unwrapDated() bool {
	b := l.Text
	if len(b) < 20 || b[4] != '-' && b[4] != '/' && (b[10] != '.' || !values.IsDigits(string(b[:10]))) {
		return false
	}
	end := bytes.IndexAny(b[:min(len(b), 64)], " \t")
	if end < 0 {
		return false
	}
	when, ok := values.Time(strings.Replace(string(b[:end]), "_", "T", 1)) // svlogd of runit
	if !ok && (end == 10) {                                                // a blank between day and time
		if i := bytes.IndexAny(b[end+1:min(len(b), 64)], " \t"); i > 0 {
			end += 1 + i
			when, ok = values.Time(string(b[:end]))
		}
	}
	if !ok {
		return false
	}
	l.When, l.dated, l.Text = when, true, b[end+1:]
	l.unwrapStream()
	l.Text = cutTag(l.Text)
	return true
}

// unwrapStream cuts what CRI puts between the time and the line: the stream, and whether the line
// ends here.
func (l *line) unwrapStream() {
	b := l.Text
	if !bytes.HasPrefix(b, []byte("stdout ")) && !bytes.HasPrefix(b, []byte("stderr ")) || len(b) < 9 {
		return
	}
	tag := b[7]
	if tag != 'F' && tag != 'P' || b[8] != ' ' && b[8] != ':' {
		return
	}
	if b[3] == 'e' {
		l.stream = 1
	}
	l.part = tag == 'P'
	end := bytes.IndexByte(b[7:], ' ')
	if end < 0 {
		end = len(b) - 8
	}
	l.Text = b[7+end+1:]
}

// unwrapStamp cuts the time of syslog (RFC 3164), or of journalctl with the day of the week, and
// what stands between it and the line.
func (l *line) unwrapStamp(now time.Time) bool {
	b := l.Text
	if day, rest, ok := bytes.Cut(b, []byte(" ")); ok && len(day) == 3 && len(rest) > 24 && rest[4] == '-' && rest[10] == ' ' {
		end := 19 // Wed 2024-06-12 09:45:01.123456 UTC host program[1]:
		for end < len(rest) && rest[end] != ' ' {
			end++
		}
		when, ok := values.Time(string(rest[:end]))
		if _, after, zoned := bytes.Cut(rest[end:][min(1, len(rest)-end):], []byte(" ")); ok && zoned {
			l.When, l.dated, l.Text = when, true, cutTag(after)
			return true
		}
		return false
	}
	if len(b) <= len(time.Stamp) || values.Month(b[:3]) == 0 {
		return false
	}
	when, err := time.Parse(time.Stamp, string(b[:len(time.Stamp)]))
	if err != nil {
		return false
	}
	rest := b[len(time.Stamp):]
	if rest[0] == '.' { // short-precise of journalctl
		end := 1
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		if d, ok := values.Seconds("0" + string(rest[:end])); ok {
			when = when.Add(d)
		}
		rest = rest[end:]
	}
	if len(rest) == 0 || rest[0] != ' ' {
		return false
	}
	if !l.dated {
		l.When = withYear(when, now)
	}
	l.Text = cutTag(rest[1:])
	return true
}

// withYear returns a syslog time with its year, in UTC. The time lies within the last twelve
// months.
func withYear(when, now time.Time) time.Time {
	// Parse uses year 0, and so accepts February 29 too.
	in := func(year int) time.Time {
		return time.Date(year, when.Month(), when.Day(), when.Hour(), when.Minute(), when.Second(), when.Nanosecond(), time.UTC)
	}
	dated := in(now.Year())
	if dated.After(now.Add(24 * time.Hour)) {
		dated = in(now.Year() - 1)
	}
	return dated
}

// cutTag cuts the name of a host and the program's name with a colon, or only the program's name.
func cutTag(b []byte) []byte {
	end := bytes.Index(b[:min(len(b), 256)], []byte(": "))
	if end < 1 {
		return b
	}
	tag := b[:end]
	if i := bytes.IndexByte(tag, ' '); i > 0 {
		if host := string(tag[:i]); strings.ContainsAny(host, `"'{}=|`) {
			return b
		}
		tag = cutPriority(tag[i+1:])
	}
	if pid := bytes.IndexByte(tag, '['); pid > 0 && tag[len(tag)-1] == ']' {
		tag = tag[:pid]
	}
	for _, c := range tag {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"'{}[]()=|:`, c) >= 0 {
			return b
		}
	}
	if len(tag) == 0 {
		return b
	}
	return b[end+2:]
}

// cutPriority cuts what BusyBox puts in front of a program's name, such as "daemon.info".
func cutPriority(tag []byte) []byte {
	priority, program, ok := bytes.Cut(tag, []byte(" "))
	_, level, dotted := bytes.Cut(priority, []byte("."))
	switch string(level) {
	case "debug", "info", "notice", "warn", "warning", "err", "error", "crit", "alert", "emerg", "panic":
		if ok && dotted {
			return program
		}
	}
	return tag
}

// unwrapPriority cuts the priority of syslog, and the header of RFC 5424, in which a version
// follows it.
func (l *line) unwrapPriority(now time.Time) bool {
	b := l.Text
	end := bytes.IndexByte(b[:min(len(b), 6)], '>')
	if end < 2 || !values.IsDigits(string(b[1:end])) {
		return false
	}
	l.Text = b[end+1:]
	rest, ok := bytes.CutPrefix(l.Text, []byte("1 "))
	if !ok {
		return true
	}
	head := bytes.SplitN(rest, []byte(" "), 6) // time, host, program, process, message, the rest
	if len(head) < 6 {
		return true
	}
	if when, ok := values.Time(string(head[0])); ok {
		l.When, l.dated = when, true
	}
	l.Text = cutStructured(head[5])
	return true
}

// cutStructured cuts the structured data of RFC 5424: "-" or elements in brackets.
func cutStructured(b []byte) []byte {
	if rest, ok := bytes.CutPrefix(b, []byte("-")); ok {
		return rest
	}
	for len(b) > 0 && b[0] == '[' {
		end, inQuotes := 1, false
		for ; end < len(b) && (inQuotes || b[end] != ']'); end++ {
			switch b[end] {
			case '\\':
				end++
			case '"':
				inQuotes = !inQuotes
			}
		}
		if end >= len(b) {
			return nil
		}
		b = b[end+1:]
	}
	return b
}

// envelopes are the names under which collectors put the line into a JSON object. The first ones
// have no other use; the others hold a program's message in other logs.
var (
	envelopes     = []string{"log", "MESSAGE", "short_message"}
	maybeEnvelope = []string{"textPayload", "@message", "message", "msg", "line", "event.original", "event.line", "event", "_raw", "body",
		"_source.message", "result._raw", "jsonPayload.message", "jsonPayload.log"}
	envelopeTimes = []string{"__REALTIME_TIMESTAMP", "time", "@timestamp", "timestamp", "_time", "ts", "date", "_source.@timestamp", "result._time"}
)

// unwrapObject takes the line out of a JSON object, if it is in one.
func (l *line) unwrapObject() bool {
	if !maybeWrapped(l.Text) {
		return false
	}
	p := l.Pairs()
	if p == nil {
		return false
	}
	inner := p.Get(envelopes...)
	if raw := p.Array("MESSAGE"); raw != nil { // an array of the bytes of a line that is not valid text
		var bytes []int
		if json.Unmarshal(raw, &bytes) != nil {
			return false
		}
		b := make([]byte, len(bytes))
		for i, c := range bytes {
			b[i] = byte(c)
		}
		inner = string(b)
	}
	if inner == "" {
		if inner = p.Get(maybeEnvelope...); !strings.Contains(inner, "/v2") && !strings.Contains(inner, "HTTP/") {
			return false
		}
	}
	if when, ok := values.Time(p.Get(envelopeTimes...)); ok {
		l.When, l.dated = when, true
	}
	if p.Get("stream") == "stderr" {
		l.stream = 1
	}
	whole := strings.TrimRight(inner, "\r\n")
	l.part = l.part || p.Get("CONTAINER_PARTIAL_MESSAGE") == "true" || len(whole) == len(inner) && len(inner) >= dockerPiece && p.Get("MESSAGE") == ""
	l.SetText([]byte(whole))
	return true
}

// maybeWrapped reports whether an object may contain a line, without parsing it.
func maybeWrapped(b []byte) bool {
	for _, name := range []string{`"log"`, `"MESSAGE"`, `ayload"`, `essage"`, `"msg"`, `"line"`, `original"`, `"event"`, `"_raw"`, `"body"`} {
		if bytes.Contains(b, []byte(name)) {
			return true
		}
	}
	return false
}

// withoutColours returns a line without terminal colour codes, whether they are raw or as rsyslog
// writes them.
func withoutColours(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		end := i
		switch {
		case bytes.HasPrefix(b[i:], []byte("\x1b[")):
			end = i + 2
		case bytes.HasPrefix(b[i:], []byte("#033[")):
			end = i + 5
		default:
			out = append(out, b[i])
			continue
		}
		for end < len(b) && (b[end] >= '0' && b[end] <= '9' || b[end] == ';') {
			end++
		}
		i = end // including the letter
	}
	return out
}
