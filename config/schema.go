package config

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// Patterns of the values that are text in YAML and something else here.
const (
	durationPattern = `^[+-]?([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$`
	sizePattern     = `^[0-9]+(\.[0-9]+)? *([kKmMgGtT]?[bB]?|[kKmMgGtT][iI][bB])$`
)

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for
// editors and for checks before a file is rolled out. Keys of Distribution that
// have no meaning here are in it, marked deprecated.
func Schema() []byte {
	s := sectionSchema(reflect.TypeFor[Config](), "")
	s["required"] = []string{"version"}
	return document("Slipway registry server configuration", s)
}

// AgentSchema returns the JSON Schema (draft 2020-12) of a configuration file of the
// node agent.
func AgentSchema() []byte {
	// The path keeps Distribution's keys out, which are found by theirs.
	return document("Slipway node agent configuration", sectionSchema(reflect.TypeFor[Agent](), "agent"))
}

func document(title string, s map[string]any) []byte {
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	s["type"] = "object"
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		// Maps of strings, numbers and lists, built here, always marshal.
		panic("config: schema: " + err.Error())
	}
	return append(b, '\n')
}

func sectionSchema(t reflect.Type, path string) map[string]any {
	props := make(map[string]any)
	for _, f := range fieldsOf(t) {
		at := join(path, f.key)
		s := typeSchema(f.typ, f, at)
		if f.doc != "" {
			s["description"] = f.doc
		}
		props[f.key] = s
	}
	for _, a := range aliases {
		if parent, key := splitKey(a.from); parent == path {
			s := map[string]any{"description": a.doc}
			for k, v := range typeSchema(typeAt(named(a.to)), field{}, a.to) {
				s[k] = v
			}
			props[key] = s
		}
	}
	foreignProps(props, path)
	s := map[string]any{
		"type": []string{"object", "null"}, "properties": props, "additionalProperties": false,
	}
	if words, ok := scalarForms[path]; ok {
		s["type"] = []string{"object", "string", "null"}
		s["description"] = "May also be one word: " + oneOf(words) + "."
	}
	return s
}

// foreignProps adds the keys of Distribution that have no field.
func foreignProps(props map[string]any, path string) {
	for _, k := range foreignKeys {
		if parent, key := splitKey(k.path); parent == path {
			props[key] = map[string]any{"description": k.why, "deprecated": true}
		}
	}
}

func typeSchema(t reflect.Type, f field, path string) map[string]any {
	t = deref(t)
	switch shapeOf(t) {
	case shapeSection:
		return sectionSchema(t, path)
	case shapeMap:
		return map[string]any{
			"type": []string{"object", "null"}, "additionalProperties": typeSchema(t.Elem(), field{}, path+"[]"),
		}
	case shapeList:
		return map[string]any{
			"type": []string{"array", "null"}, "items": typeSchema(t.Elem(), field{}, path+"[]"),
		}
	case shapePresent:
		return map[string]any{"type": []string{"object", "boolean", "null"}}
	}
	return scalarSchema(t, f)
}

func scalarSchema(t reflect.Type, f field) map[string]any {
	s := make(map[string]any)
	switch {
	case t == typeDuration:
		s["type"], s["pattern"] = []string{"string", "integer"}, durationPattern
	case t == typeSize:
		s["type"], s["pattern"] = []string{"string", "integer"}, sizePattern
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case t.Kind() == reflect.Float64, t.Kind() == reflect.Float32:
		s["type"] = "number"
	case t.Kind() == reflect.String:
		s["type"] = []string{"string", "number", "boolean", "null"}
	default:
		s["type"] = "integer"
	}
	if len(f.enum) > 0 {
		s["type"], s["enum"] = "string", f.enum
		if f.key == "version" { // YAML reads 0.1 as a number
			s["type"], s["enum"] = []string{"string", "number"}, []any{Version, 0.1}
		}
	}
	if f.def != "" {
		s["default"] = jsonValue(t, f.def)
	}
	if f.min != "" && (s["type"] == "integer" || s["type"] == "number") {
		s["minimum"] = jsonValue(t, f.min)
	}
	return s
}

// jsonValue gives a tag's text the JSON type of the field.
func jsonValue(t reflect.Type, text string) any {
	switch t.Kind() {
	case reflect.Bool:
		b, _ := parseBool(text)
		return b
	case reflect.Int, reflect.Float64:
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	}
	return text
}
