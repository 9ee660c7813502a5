package config

import (
	"encoding"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// decoder fills a configuration from a tree.
type decoder struct {
	*report
	root   reflect.Type
	expand *expander
	places places // of every key that was set
}

// maxSuggested bounds the unknown keys for which a known one is sought: a file
// with more of them is not one of ours at all.
const maxSuggested = 50

// value sets v from n. A null leaves the default, but an optional section that
// is named, though empty, is there: whoever writes "htpasswd:" wants it.
func (d *decoder) value(n *node, v reflect.Value, f field, path string) {
	d.places[path] = n.at
	optional := v.Kind() == reflect.Pointer && shapeOf(v.Type()) == shapeSection
	if n.kind == nullNode && !optional && shapeOf(v.Type()) != shapePresent {
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
			setDefaults(v.Elem())
		}
		d.value(n, v.Elem(), f, path)
		return
	}
	switch shapeOf(v.Type()) {
	case shapeSection:
		if d.want(n, dictNode, path) {
			d.section(n, v, path)
		}
	case shapeMap:
		if d.want(n, dictNode, path) {
			d.freeMap(n, v, path)
		}
	case shapeList:
		if d.want(n, listNode, path) {
			d.list(n, v, path)
		}
	case shapePresent:
		on, isBool := parseBool(n.text)
		v.SetBool(n.kind != scalarNode || !isBool || on)
	default:
		if d.want(n, scalarNode, path) {
			if msg := d.scalar(n.text, v, f); msg != "" {
				d.problem(n.at, path, msg)
			} else if _, err := strconv.ParseInt(n.text, 10, 64); err == nil && v.Type() == typeDuration && v.Int() != 0 {
				d.warn(n.at, path, "a number without a unit counts nanoseconds; write a unit, like 30s")
			}
		}
	}
}

func (d *decoder) want(n *node, kind nodeKind, path string) bool {
	if n.kind == kind {
		return true
	}
	d.problem(n.at, path, fmt.Sprintf("must be %s, not %s", kind, n.kind))
	return false
}

func (d *decoder) section(n *node, v reflect.Value, path string) {
	fields := fieldsOf(v.Type())
	for _, e := range n.entries {
		at := join(path, e.key)
		if i := indexOf(fields, e.key); i >= 0 {
			d.value(e.val, v.FieldByIndex(fields[i].index), fields[i], at)
			d.places[at] = e.at
			continue
		}
		if k, ok := foreign(at); ok {
			k.judge(e.val, e.at, d.report)
			continue
		}
		d.unknown(v.Type(), path, e)
	}
}

func indexOf(fields []field, key string) int {
	for i := range fields {
		if fields[i].key == key {
			return i
		}
	}
	return -1
}

// unknown reports a key that no section of this kind has.
func (d *decoder) unknown(t reflect.Type, path string, e entry) {
	msg := "unknown key " + join(path, e.key)
	if len(d.problems) < maxSuggested {
		if s := d.suggest(t, path, e.key); s != "" {
			msg += " (did you mean " + s + "?)"
		}
	}
	d.problem(e.at, "", msg)
}

// suggest returns the key that was probably meant, by its full path.
func (d *decoder) suggest(t reflect.Type, path, key string) string {
	if s := nearest(key, ownKeys(t, path)); s != "" {
		return join(path, s)
	}
	return elsewhere(d.root, key)
}

func (d *decoder) freeMap(n *node, v reflect.Value, path string) {
	m := reflect.MakeMapWithSize(v.Type(), len(n.entries))
	for _, e := range n.entries {
		at := join(path, e.key)
		elem := reflect.New(v.Type().Elem()).Elem()
		setDefaults(elem)
		d.value(e.val, elem, field{}, at)
		d.places[at] = e.at
		key := e.key
		if v.Type() == reflect.TypeFor[http.Header]() {
			key = http.CanonicalHeaderKey(key) // the environment has them in other cases
		}
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), elem)
	}
	v.Set(m)
}

func (d *decoder) list(n *node, v reflect.Value, path string) {
	l := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, it := range n.items {
		setDefaults(l.Index(i))
		d.value(it, l.Index(i), field{}, fmt.Sprintf("%s[%d]", path, i))
	}
	v.Set(l)
}

// scalar sets v from text and returns what is wrong with it, or "".
func (d *decoder) scalar(text string, v reflect.Value, f field) string {
	if v.Kind() == reflect.String || v.CanAddr() && v.Addr().Type().Implements(typeText) {
		expanded, err := d.expand.expand(text)
		if err != nil {
			return err.Error()
		}
		text = expanded
	}
	return setScalar(text, v, f)
}

// setScalar sets v from text and returns what is wrong with the text, or "".
func setScalar(text string, v reflect.Value, f field) string {
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
	case typeSize:
		size, err := ParseSize(text)
		if err != nil {
			return err.Error()
		}
		v.SetInt(int64(size))
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(canonical(text, f.enum))
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
		if err != nil || fl != fl || fl-fl != 0 { // NaN and infinities are no limits
			return "must be a number"
		}
		v.SetFloat(fl)
	default:
		return "cannot be set from a file"
	}
	return ""
}

// canonical gives a word of an enum in its own case: Distribution writes "List"
// in one place and "list" in another.
func canonical(text string, enum []string) string {
	for _, e := range enum {
		if strings.EqualFold(e, text) {
			return e
		}
	}
	return text
}

// setDefaults sets every field below v that has a default tag. A wrong tag is a
// programmer's mistake that Default meets at once.
func setDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct || shapeOf(v.Type()) != shapeSection {
		return
	}
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.index)
		switch {
		case f.def != "":
			if msg := setScalar(f.def, fv, f); msg != "" {
				panic("config: default of " + f.key + ": " + msg)
			}
		case fv.Kind() == reflect.Struct:
			setDefaults(fv)
		}
	}
}

// formatScalar writes a scalar as a file has it.
func formatScalar(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return formatDuration(x)
	case fmt.Stringer:
		return x.String()
	}
	return fmt.Sprint(v.Interface())
}
