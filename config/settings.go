package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Setting is a value of a configuration, for people to read.
type Setting struct {
	// Key is the full key, like http.tls.key; list entries have an index in brackets.
	Key string
	// Value is as a file has it; secrets read as in Config.Redacted.
	Value string
	// Doc is what the key does.
	Doc string
	// From says where it was set: FILE:LINE, or the name of a variable or a flag. It is
	// empty for a default.
	From string
}

// Settings lists all values, in the order of the example file. Optional sections that
// are not there are left out.
func (c *Config) Settings() []Setting {
	l := &lister{places: c.places}
	l.section(reflect.ValueOf(c).Elem(), "", false)
	return l.out
}

// lister collects settings.
type lister struct {
	places places
	out    []Setting
}

func (l *lister) section(v reflect.Value, path string, secret bool) {
	for _, f := range fieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.index)
		if f.typ == reflect.TypeFor[ForeignOnly]() || fv.Kind() == reflect.Pointer && fv.IsNil() {
			continue
		}
		l.value(fv, join(path, f.key), f.doc, secret || f.secret)
	}
}

// value lists v, or what is in it.
func (l *lister) value(v reflect.Value, path, doc string, secret bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch shapeOf(v.Type()) {
	case shapeSection:
		l.section(v, path, secret)
		return
	case shapeMap:
		if v.Len() > 0 {
			keys := v.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				l.value(v.MapIndex(k), join(path, k.String()), doc, secret)
			}
			return
		}
	case shapeList:
		if elem := shapeOf(v.Type().Elem()); v.Len() > 0 && elem != shapeScalar {
			for i := range v.Len() {
				l.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i), doc, secret)
			}
			return
		}
	}
	s := Setting{Key: path, Value: plainText(v, secret), Doc: doc}
	if at, ok := l.places[path]; ok {
		s.From = at.String()
	} else if at, ok := l.places[path+"[0]"]; ok { // entries of a list, set one by one
		s.From = at.String()
	}
	l.out = append(l.out, s)
}

// plainText writes a scalar, or a list of them, on one line.
func plainText(v reflect.Value, secret bool) string {
	switch shapeOf(v.Type()) {
	case shapeMap:
		return ""
	case shapeList:
		var parts []string
		for i := range v.Len() {
			parts = append(parts, plainText(v.Index(i), secret))
		}
		return strings.Join(parts, ", ")
	}
	return redactScalar(v, secret).Value
}
