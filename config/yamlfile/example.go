package yamlfile

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// exampleWidth is the column at which comments are wrapped.
const exampleWidth = 90

// ExampleOf returns a file with every key of a configuration. comments are at its top.
func ExampleOf(v reflect.Value, comments ...string) string {
	w := &exampleWriter{}
	for _, c := range comments {
		w.comment(0, c)
	}
	w.b.WriteByte('\n')
	w.section(v, "", 0)
	return w.b.String()
}

type exampleWriter struct {
	b strings.Builder
	// off is set while commented-out lines are written. offAt is their indentation.
	off   bool
	offAt int
}

// line writes one line at a depth. In a commented-out part, "# " is at the indentation of
// the part, so that removing it gives valid YAML.
func (w *exampleWriter) line(depth int, s string) {
	if w.off {
		w.b.WriteString(strings.Repeat("  ", w.offAt) + "# " + strings.Repeat("  ", depth-w.offAt) + s + "\n")
		return
	}
	w.b.WriteString(strings.Repeat("  ", depth) + s + "\n")
}

// comment writes wrapped text.
func (w *exampleWriter) comment(depth int, text string) {
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word)+2*depth > exampleWidth && line != "#" {
			w.line(depth, line)
			line = "#"
		}
		line += " " + word
	}
	if line != "#" {
		w.line(depth, line)
	}
}

func (w *exampleWriter) section(v reflect.Value, path string, depth int) {
	for i, f := range FieldsOf(v.Type()) {
		if depth == 0 && i > 0 {
			w.b.WriteByte('\n')
		}
		if f.Type == reflect.TypeFor[ForeignOnly]() {
			continue
		}
		at := Join(path, f.Key)
		doc := f.Doc
		if fv := v.FieldByIndex(f.Index); !w.off && f.example != "" && fv.Kind() == reflect.String && fv.Len() == 0 {
			doc += " Example: " + f.example
		}
		w.comment(depth, doc)
		w.key(v.FieldByIndex(f.Index), f, at, depth)
	}
}

// key writes a key with its value.
func (w *exampleWriter) key(v reflect.Value, f Field, path string, depth int) {
	head := f.Key + ":"
	switch ShapeOf(f.Type) {
	case ShapeSection:
		w.sectionKey(v, f, path, depth)
	case ShapeMap:
		if !w.off || f.example == "" {
			w.line(depth, head+" {}")
		}
		w.sample(depth, func() {
			if f.example != "" {
				w.line(depth, head)
				w.line(depth+1, f.example)
			}
		})
	case ShapeList:
		if !w.off || f.example == "" {
			w.line(depth, head+" []")
		}
		w.sample(depth, func() { w.listSample(f, path, depth) })
	case shapePresent:
		w.sample(depth, func() { w.line(depth, head) })
	default:
		if v.Kind() == reflect.Pointer { // optional: no default
			w.sample(depth, func() {
				w.line(depth, head+" "+quoteScalar(reflect.New(deref(f.Type)).Elem(), f.example))
			})
			return
		}
		if w.off && v.IsZero() && f.example != "" {
			w.line(depth, head+" "+quoteScalar(v, f.example))
			return
		}
		w.line(depth, head+" "+quoteScalar(v, ""))
	}
}

func (w *exampleWriter) sectionKey(v reflect.Value, f Field, path string, depth int) {
	if v.Kind() != reflect.Pointer {
		w.line(depth, f.Key+":")
		w.section(v, path, depth+1)
		return
	}
	w.sample(depth, func() {
		elem := reflect.New(deref(f.Type)).Elem()
		SetDefaults(elem)
		w.line(depth, f.Key+":")
		w.section(elem, path, depth+1)
	})
}

// sample calls fn and comments out everything that fn writes.
func (w *exampleWriter) sample(depth int, fn func()) {
	if !w.off {
		w.off, w.offAt = true, depth
		defer func() { w.off = false }()
	}
	fn()
}

// listSample writes a list with one entry.
func (w *exampleWriter) listSample(f Field, path string, depth int) {
	elem := reflect.New(deref(f.Type).Elem()).Elem()
	if ShapeOf(elem.Type()) != ShapeSection {
		if f.example != "" {
			w.line(depth, f.Key+":")
			w.line(depth+1, "- "+quoteScalar(elem, f.example))
		}
		return
	}
	SetDefaults(elem)
	w.line(depth, f.Key+":")
	w.line(depth+1, "-")
	w.section(elem, path+"[]", depth+2)
}

// quoteScalar writes a scalar as YAML. If text is not empty, it is the text of the
// scalar.
func quoteScalar(v reflect.Value, text string) string {
	if text == "" {
		text = FormatScalar(v)
	}
	if v.Kind() != reflect.String && v.Type() != typeDuration && v.Type() != TypeSize || text == Version {
		return text
	}
	b, err := yaml.Dump(text)
	if err != nil {
		return `""` // every text can be dumped
	}
	return strings.TrimSpace(string(b))
}
