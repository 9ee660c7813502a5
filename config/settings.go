package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"example.org/slipway/config/yamlfile"
)

// Setting is a value of a configuration, for people to read.
type Setting struct {
	// Key is the full key, like http.tls.key; list entries have an index in brackets.
	Key string
	// Value is written as in a file. Secrets are hidden as in Config.Redacted.
	Value string
	// Doc says what the key does.
	Doc string
	// From says where it was set: FILE:LINE, or the name of a variable or a flag. It is
	// empty for a default.
	From string
}

// Settings lists all values in the order of the example file. It omits optional sections
// that are not set.
func (c *Config) Settings() []Setting {
	l := &lister{places: c.places}
	l.section(reflect.ValueOf(c).Elem(), "", false)
	return l.out
}

// lister collects settings.
type lister struct {
	places yamlfile.Places
	out    []Setting
}

func (l *lister) section(v reflect.Value, path string, secret bool) {
	for _, f := range yamlfile.FieldsOf(v.Type()) {
		fv := v.FieldByIndex(f.Index)
		if f.Type == reflect.TypeFor[yamlfile.ForeignOnly]() || fv.Kind() == reflect.Pointer && fv.IsNil() {
			continue
		}
		l.value(fv, yamlfile.Join(path, f.Key), f.Doc, secret || f.Secret)
	}
}

// value lists v, or the values in it.
func (l *lister) value(v reflect.Value, path, doc string, secret bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch yamlfile.ShapeOf(v.Type()) {
	case yamlfile.ShapeSection:
		l.section(v, path, secret)
		return
	case yamlfile.ShapeMap:
		if v.Len() > 0 {
			keys := v.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				l.value(v.MapIndex(k), yamlfile.Join(path, k.String()), doc, secret)
			}
			return
		}
	case yamlfile.ShapeList:
		if elem := yamlfile.ShapeOf(v.Type().Elem()); v.Len() > 0 && elem != yamlfile.ShapeScalar {
			for i := range v.Len() {
				l.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i), doc, secret)
			}
			return
		}
	}
	s := Setting{Key: path, Value: plainText(v, secret), Doc: doc}
	if at, ok := l.places[path]; ok {
		s.From = at.String()
	} else if at, ok := l.places[path+"[0]"]; ok { // entries of a list that were set individually
		s.From = at.String()
	}
	l.out = append(l.out, s)
}

// plainText writes a scalar or a list of scalars on one line.
func plainText(v reflect.Value, secret bool) string {
	switch yamlfile.ShapeOf(v.Type()) {
	case yamlfile.ShapeMap:
		return ""
	case yamlfile.ShapeList:
		var parts []string
		for i := range v.Len() {
			parts = append(parts, plainText(v.Index(i), secret))
		}
		return strings.Join(parts, ", ")
	}
	return yamlfile.RedactedScalar(v, secret).Value
}
