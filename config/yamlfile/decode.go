package yamlfile

import (
	"encoding"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Decoder fills a configuration from a tree.
type Decoder struct {
	*Report
	Root   reflect.Type
	Expand *Expander
	Places Places // of every key that was set
}

// maxSuggested bounds the unknown keys for which a known key is suggested. A file with
// more unknown keys is not a configuration of this program.
const maxSuggested = 50

// Value sets v from n. A null leaves the default. But an optional section that is named
// counts as set even if it is empty: a user who writes "htpasswd:" wants it.
func (d *Decoder) Value(n *Node, v reflect.Value, f Field, path string) {
	d.Places[path] = n.At
	optional := v.Kind() == reflect.Pointer && ShapeOf(v.Type()) == ShapeSection
	if n.Kind == nullNode && !optional && ShapeOf(v.Type()) != shapePresent {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			SetDefaults(v.Elem())
		}
		d.Value(n, v.Elem(), f, path)
		return
	}
	switch ShapeOf(v.Type()) {
	case ShapeSection:
		if d.want(n, DictNode, path) {
			d.section(n, v, path)
		}
	case ShapeMap:
		if d.want(n, DictNode, path) {
			d.freeMap(n, v, path)
		}
	case ShapeList:
		if d.want(n, listNode, path) {
			d.list(n, v, path)
		}
	case shapePresent:
		on, isBool := parseBool(n.text)
		v.SetBool(n.Kind != scalarNode || !isBool || on)
	default:
		if d.want(n, scalarNode, path) {
			if msg := d.scalar(n.text, v, f); msg != "" {
				d.AddProblem(n.At, path, msg)
			} else if _, err := strconv.ParseInt(n.text, 10, 64); err == nil && v.Type() == typeDuration && v.Int() != 0 {
				d.AddWarning(n.At, path, "a number without a unit counts nanoseconds; write a unit, like 30s")
			}
		}
	}
}

func (d *Decoder) want(n *Node, kind NodeKind, path string) bool {
	if n.Kind == kind {
		return true
	}
	d.AddProblem(n.At, path, fmt.Sprintf("must be %s, not %s", kind, n.Kind))
	return false
}

func (d *Decoder) section(n *Node, v reflect.Value, path string) {
	fields := FieldsOf(v.Type())
	for _, e := range n.entries {
		at := Join(path, e.key)
		if i := indexOf(fields, e.key); i >= 0 {
			d.Value(e.val, v.FieldByIndex(fields[i].Index), fields[i], at)
			d.Places[at] = e.at
			continue
		}
		if k, ok := foreign(at); ok {
			k.judge(e.val, e.at, d.Report)
			continue
		}
		d.unknown(v.Type(), path, e)
	}
}

func indexOf(fields []Field, key string) int {
	for i := range fields {
		if fields[i].Key == key {
			return i
		}
	}
	return -1
}

// unknown reports a key that no section of this kind has.
func (d *Decoder) unknown(t reflect.Type, path string, e entry) {
	msg := "unknown key " + Join(path, e.key)
	if len(d.Problems) < maxSuggested {
		if s := d.suggest(t, path, e.key); s != "" {
			msg += " (did you mean " + s + "?)"
		}
	}
	d.AddProblem(e.at, "", msg)
}

// suggest returns the full path of the key that was probably meant.
func (d *Decoder) suggest(t reflect.Type, path, key string) string {
	if s := nearest(key, ownKeys(t, path)); s != "" {
		return Join(path, s)
	}
	return elsewhere(d.Root, key)
}

func (d *Decoder) freeMap(n *Node, v reflect.Value, path string) {
	m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	for _, e := range n.entries {
		at := Join(path, e.key)
		elem := reflect.New(v.Type().Elem()).Elem()
		SetDefaults(elem)
		d.Value(e.val, elem, Field{}, at)
		d.Places[at] = e.at
		key := e.key
		if v.Type() == reflect.TypeFor[http.Header]() {
			key = http.CanonicalHeaderKey(key) // names of variables may differ in case
		}
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), elem)
	}
	v.Set(m)
}

func (d *Decoder) list(n *Node, v reflect.Value, path string) {
	l := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, it := range n.items {
		SetDefaults(l.Index(i))
		d.Value(it, l.Index(i), Field{}, fmt.Sprintf("%s[%d]", path, i))
	}
	v.Set(l)
}

// scalar sets v from text and returns what is wrong with it, or "".
func (d *Decoder) scalar(text string, v reflect.Value, f Field) string {
	if v.Kind() == reflect.String || v.CanAddr() && v.Addr().Type().Implements(typeText) {
		expanded, err := d.Expand.expand(text)
		if err != nil {
			return err.Error()
		}
		text = expanded
	}
	return SetScalar(text, v, f)
}

// SetScalar sets v from text and returns what is wrong with the text, or "".
func SetScalar(text string, v reflect.Value, f Field) string {
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := t.UnmarshalText([]byte(text)); err != nil {
			return "cannot be used: wrong form"
		}
		return ""
	}
	switch v.Type() {
	case typeDuration:
		dur, err := ParseDuration(text)
		if err != nil {
			return err.Error()
		}
		v.SetInt(int64(dur))
		return ""
	case TypeSize:
		size, err := ParseSize(text)
		if err != nil {
			return err.Error()
		}
		v.SetInt(int64(size))
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(canonical(text, f.Enum))
	case reflect.Bool:
		b, ok := parseBool(text)
		if !ok {
			return "must be true or false"
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return "must be a whole number"
		}
		v.SetInt(i)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		u, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return "must be a whole number, not negative"
		}
		v.SetUint(u)
	case reflect.Float32, reflect.Float64:
		fl, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil || fl != fl || fl-fl != 0 { // NaN and infinities are not valid limits
			return "must be a number"
		}
		v.SetFloat(fl)
	default:
		return "cannot be set from a file"
	}
	return ""
}

// canonical returns a word of an enum in the enum's own case. Distribution writes "List"
// in one place and "list" in another.
func canonical(text string, enum []string) string {
	for _, e := range enum {
		if strings.EqualFold(e, text) {
			return e
		}
	}
	return text
}

// SetDefaults sets every field below v that has a default tag. It panics on a wrong tag,
// which is a programming error that every call of Default finds.
func SetDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct || ShapeOf(v.Type()) != ShapeSection {
		return
	}
	for _, f := range FieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.Index)
		switch {
		case f.def != "":
			if msg := SetScalar(f.def, fv, f); msg != "" {
				panic("config: default of " + f.Key + ": " + msg)
			}
		case fv.Kind() == reflect.Struct:
			SetDefaults(fv)
		}
	}
}

// FormatScalar writes a scalar as in a file.
func FormatScalar(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return FormatDuration(x)
	case fmt.Stringer:
		return x.String()
	}
	return fmt.Sprint(v.Interface())
}
