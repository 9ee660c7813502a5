package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Redacted returns the configuration as a YAML file in which each secret, each
// header sent to another server and each password in a URL reads "******".
func (c Config) Redacted() ([]byte, error) {
	return redactedYAML(reflect.ValueOf(c))
}

func redactedYAML(v reflect.Value) ([]byte, error) {
	b, err := yaml.Dump(redactValue(v, false))
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b, nil
}

// String implements fmt.Stringer with Redacted.
func (c Config) String() string {
	b, err := c.Redacted()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// GoString implements fmt.GoStringer with Redacted.
func (c Config) GoString() string { return c.String() }

// LogValue implements slog.LogValuer with Redacted.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalYAML implements yaml.Marshaler with Redacted.
func (c Config) MarshalYAML() (any, error) {
	return redactValue(reflect.ValueOf(c), false), nil
}

// MarshalJSON implements json.Marshaler with Redacted.
func (c Config) MarshalJSON() ([]byte, error) {
	var x any
	if err := redactValue(reflect.ValueOf(c), false).Decode(&x); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return json.Marshal(x)
}

// redactValue turns a value into YAML. With secret set every text is hidden.
func redactValue(v reflect.Value, secret bool) *yaml.Node {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		}
		v = v.Elem()
	}
	switch shapeOf(v.Type()) {
	case shapeSection:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range fieldsOf(v.Type()) {
			fv := v.FieldByIndex(f.index)
			if fv.Kind() == reflect.Pointer && fv.IsNil() || f.typ == typePresent && !fv.Bool() ||
				f.typ == reflect.TypeFor[ForeignOnly]() {
				continue
			}
			n.Content = append(n.Content, textNode(f.key), redactValue(fv, secret || f.secret))
		}
		return n
	case shapeMap:
		n := &yaml.Node{Kind: yaml.MappingNode, Style: flowIfEmpty(v)}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			n.Content = append(n.Content, textNode(k.String()), redactValue(v.MapIndex(k), secret))
		}
		return n
	case shapeList:
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: flowIfEmpty(v)}
		for i := range v.Len() {
			n.Content = append(n.Content, redactValue(v.Index(i), secret))
		}
		return n
	}
	return redactScalar(v, secret)
}

func redactScalar(v reflect.Value, secret bool) *yaml.Node {
	text := formatScalar(v)
	if v.Kind() != reflect.String {
		n := new(yaml.Node)
		n.SetString(text)
		if v.Type() != typeDuration && v.Type() != typeSize {
			n.Tag = "" // a number or a boolean
		}
		return n
	}
	if secret && text != "" {
		text = redacted
	} else if strings.Contains(text, "://") {
		if u, err := url.Parse(text); err == nil && u.User != nil {
			u.User = url.User(redacted)
			text = u.String()
		} else if err != nil {
			text = redacted // what cannot be read may hold anything
		}
	}
	return textNode(text)
}

func flowIfEmpty(v reflect.Value) yaml.Style {
	if v.Len() == 0 {
		return yaml.FlowStyle
	}
	return 0
}

func textNode(s string) *yaml.Node {
	n := new(yaml.Node)
	n.SetString(s)
	return n
}
