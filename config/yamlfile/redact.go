package yamlfile

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// RedactedYAML writes a configuration as YAML without its secrets.
func RedactedYAML(v reflect.Value) ([]byte, error) {
	b, err := yaml.Dump(RedactedNode(v, false))
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return b, nil
}

// RedactedNode converts a value to YAML. If secret is set, it hides every text.
func RedactedNode(v reflect.Value, secret bool) *yaml.Node {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		}
		v = v.Elem()
	}
	switch ShapeOf(v.Type()) {
	case ShapeSection:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range FieldsOf(v.Type()) {
			fv := v.FieldByIndex(f.Index)
			if fv.Kind() == reflect.Pointer && fv.IsNil() || f.Type == typePresent && !fv.Bool() ||
				f.Type == reflect.TypeFor[ForeignOnly]() {
				continue
			}
			n.Content = append(n.Content, textNode(f.Key), RedactedNode(fv, secret || f.Secret))
		}
		return n
	case ShapeMap:
		n := &yaml.Node{Kind: yaml.MappingNode, Style: flowIfEmpty(v)}
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			n.Content = append(n.Content, textNode(k.String()), RedactedNode(v.MapIndex(k), secret))
		}
		return n
	case ShapeList:
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: flowIfEmpty(v)}
		for i := range v.Len() {
			n.Content = append(n.Content, RedactedNode(v.Index(i), secret))
		}
		return n
	}
	return RedactedScalar(v, secret)
}

// RedactedScalar converts a scalar to YAML. If secret is set, it hides a text.
func RedactedScalar(v reflect.Value, secret bool) *yaml.Node {
	text := FormatScalar(v)
	if v.Kind() != reflect.String {
		n := new(yaml.Node)
		n.SetString(text)
		if v.Type() != typeDuration && v.Type() != TypeSize {
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
			text = redacted // an unreadable value may contain anything
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
