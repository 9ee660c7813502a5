package formats

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"example.org/slipway/workload/trace/logs/internal/values"
)

// Pairs are the fields of a line that is a JSON object or in logfmt. A field of a nested object has
// both names with a dot between them; an array has the value of its first element. Strings are
// without their quotes, and null is left out.
type Pairs struct {
	names, values []string
	arrays        map[string][]byte // as written in the line
	// words are what stands before the first name of a line in logfmt.
	words string
}

const (
	// maxPairs bounds the fields of a line.
	maxPairs = 512
	// maxDepth bounds objects within objects.
	maxDepth = 8
)

// Get returns the first non-empty value that the line has under one of the names, in the
// order of the names.
func (p *Pairs) Get(names ...string) string {
	for _, name := range names {
		for i := range p.names {
			if p.names[i] == name && p.values[i] != "" {
				return p.values[i]
			}
		}
	}
	return ""
}

// Has reports whether the line has all the names, with non-empty values.
func (p *Pairs) Has(names ...string) bool {
	for _, name := range names {
		if p.Get(name) == "" {
			return false
		}
	}
	return true
}

// loose returns the fields with names in small letters, without "_" and "-".
func (p *Pairs) loose() *Pairs {
	q := &Pairs{names: make([]string, len(p.names)), values: p.values}
	for i, name := range p.names {
		q.names[i] = looseName.Replace(strings.ToLower(name))
	}
	return q
}

var looseName = strings.NewReplacer("_", "", "-", "")

// Array returns the array of a name as written in the line, or nil if there is none.
func (p *Pairs) Array(name string) []byte { return p.arrays[name] }

func (p *Pairs) add(name, value string) {
	if len(p.names) < maxPairs {
		p.names, p.values = append(p.names, name), append(p.values, value)
	}
}

// parseObject reads a JSON object with nothing after it. It reports whether the bytes are one.
func (p *Pairs) parseObject(b []byte) bool {
	*p = Pairs{names: p.names[:0], values: p.values[:0]}
	end, ok := p.object(b, 0, "", 0)
	return ok && len(bytes.TrimSpace(b[end:])) == 0
}

// object reads the object at b[i] and returns the index after it.
func (p *Pairs) object(b []byte, i int, prefix string, depth int) (int, bool) {
	if depth > maxDepth {
		return 0, false
	}
	for i = values.SkipSpace(b, i+1); ; {
		if i < len(b) && b[i] == '}' && b[i-1] != ',' {
			return i + 1, true
		}
		name, end, ok := jsonText(b, i)
		if !ok {
			return 0, false
		}
		if i = values.SkipSpace(b, end); i >= len(b) || b[i] != ':' {
			return 0, false
		}
		if i, ok = p.value(b, values.SkipSpace(b, i+1), prefix+name, depth); !ok {
			return 0, false
		}
		if i = values.SkipSpace(b, i); i >= len(b) {
			return 0, false
		}
		switch b[i] {
		case ',':
			i = values.SkipSpace(b, i+1)
		case '}':
			return i + 1, true
		default:
			return 0, false
		}
	}
}

// value reads the value of a name at b[i] and returns the index after it.
func (p *Pairs) value(b []byte, i int, name string, depth int) (int, bool) {
	if i >= len(b) {
		return 0, false
	}
	switch b[i] {
	case '"':
		text, end, ok := jsonText(b, i)
		if ok {
			p.add(name, text)
		}
		return end, ok
	case '{':
		return p.object(b, i, name+".", depth+1)
	case '[':
		return p.array(b, i, name, depth+1)
	}
	end := i
	for end < len(b) && strings.IndexByte(",}] \t\r\n", b[end]) < 0 {
		end++
	}
	text := string(b[i:end])
	switch {
	case text == "null", text == "-", text == "" && i < len(b): // nginx's variables without quotes may be missing
	case text == "true", text == "false":
		p.add(name, text)
	default:
		if _, err := strconv.ParseFloat(text, 64); err != nil {
			return 0, false
		}
		p.add(name, text)
	}
	return end, true
}

// array reads the array at b[i], whose first value counts.
func (p *Pairs) array(b []byte, i int, name string, depth int) (int, bool) {
	if depth > maxDepth {
		return 0, false
	}
	from := i
	first := true
	for i = values.SkipSpace(b, i+1); ; first = false {
		if i < len(b) && b[i] == ']' && first {
			return i + 1, true
		}
		before := len(p.names)
		end, ok := p.value(b, i, name, depth)
		if !ok {
			return 0, false
		}
		if !first {
			p.names, p.values = p.names[:before], p.values[:before]
		}
		if i = values.SkipSpace(b, end); i >= len(b) {
			return 0, false
		}
		switch b[i] {
		case ',':
			i = values.SkipSpace(b, i+1)
		case ']':
			if p.arrays == nil {
				p.arrays = map[string][]byte{}
			}
			p.arrays[name] = b[from : i+1]
			return i + 1, true
		default:
			return 0, false
		}
	}
}

// jsonText reads the string at b[i] and returns the index after it.
func jsonText(b []byte, i int) (string, int, bool) {
	if i >= len(b) || b[i] != '"' {
		return "", 0, false
	}
	if end := values.Special(b, i+1); end < len(b) && b[end] == '"' { // most strings have no escapes
		return string(b[i+1 : end]), end + 1, true
	}
	for end := i + 1; end < len(b); end++ {
		switch b[end] {
		case '\\':
			end++
		case '"':
			var text string
			if err := json.Unmarshal(b[i:end+1], &text); err == nil {
				return text, end + 1, true
			}
			// nginx without escape=json writes \xNN
			return values.Unescape(string(b[i+1 : end])), end + 1, bytes.Contains(b[i:end], []byte(`\x`))
		}
	}
	return "", 0, false
}

// parseLogfmt reads name=value name="value" and so on, perhaps after words. It reports whether the
// line holds nothing else.
func (p *Pairs) parseLogfmt(b []byte) bool {
	*p = Pairs{names: p.names[:0], values: p.values[:0]}
	if i := bytes.IndexByte(b, '='); i > 0 {
		at := bytes.LastIndexByte(b[:i], ' ') + 1
		p.words, b = string(bytes.TrimRight(b[:at], " ")), b[at:]
	}
	for {
		b = bytes.TrimLeft(b, " ")
		if len(b) == 0 {
			return len(p.names) > 1
		}
		i := bytes.IndexByte(b, '=')
		if i <= 0 || bytes.ContainsAny(b[:i], " \"") {
			return false
		}
		name := string(b[:i])
		if b = b[i+1:]; len(b) > 0 && b[0] == '"' {
			value, rest, ok := goQuoted(b)
			if !ok {
				return false
			}
			p.add(name, value)
			b = rest
			continue
		}
		value, rest, _ := bytes.Cut(b, []byte(" ")) // a value may be empty
		p.add(name, string(value))
		b = rest
	}
}

// goQuoted reads a string as %q writes it, or with other escapes.
func goQuoted(b []byte) (s string, rest []byte, ok bool) {
	for end := 1; end < len(b); end++ {
		switch b[end] {
		case '\\':
			end++
		case '"':
			s, err := strconv.Unquote(string(b[:end+1]))
			if err != nil {
				s = values.Unescape(string(b[1:end]))
			}
			return s, b[end+1:], end+1 == len(b) || b[end+1] == ' '
		}
	}
	return "", nil, false
}
