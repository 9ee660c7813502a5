package yamlfile

import (
	"encoding/json"
	"reflect"
	"strconv"
)

// These patterns are for values that are text in YAML and have another type here.
const (
	durationPattern = `^[+-]?([0-9]+(\.[0-9]+)?d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$`
	sizePattern     = `^[0-9]+(\.[0-9]+)? *([kKmMgGtT]?[bB]?|[kKmMgGtT][iI][bB])$`
)

// SchemaOf returns the JSON Schema (draft 2020-12) of a file that is read into a type.
// The keys in required must be present. path is the place of the type in the
// configuration of a server; it determines the foreign keys.
func SchemaOf(title string, t reflect.Type, path string, required ...string) []byte {
	s := sectionSchema(t, t, path)
	if len(required) > 0 {
		s["required"] = required
	}
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	s["type"] = "object"
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		// The maps are built here of strings, numbers and lists, so they always marshal.
		panic("config: schema: " + err.Error())
	}
	return append(b, '\n')
}

func sectionSchema(root, t reflect.Type, path string) map[string]any {
	props := make(map[string]any)
	for _, f := range FieldsOf(t) {
		at := Join(path, f.Key)
		s := typeSchema(root, f.Type, f, at)
		if f.Doc != "" {
			s["description"] = f.Doc
		}
		props[f.Key] = s
	}
	for _, a := range aliases {
		if parent, key := splitKey(a.from); parent == path {
			s := map[string]any{"description": a.doc}
			for k, v := range typeSchema(root, typeAt(root, named(a.to)), Field{}, a.to) {
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
		s["description"] = "May also be one word: " + OneOf(words) + "."
	}
	return s
}

// foreignProps adds Distribution's keys that have no field.
func foreignProps(props map[string]any, path string) {
	for _, k := range foreignKeys {
		if parent, key := splitKey(k.path); parent == path {
			props[key] = map[string]any{"description": k.why, "deprecated": true}
		}
	}
}

func typeSchema(root, t reflect.Type, f Field, path string) map[string]any {
	t = deref(t)
	switch ShapeOf(t) {
	case ShapeSection:
		return sectionSchema(root, t, path)
	case ShapeMap:
		return map[string]any{
			"type": []string{"object", "null"}, "additionalProperties": typeSchema(root, t.Elem(), Field{}, path+"[]"),
		}
	case ShapeList:
		return map[string]any{
			"type": []string{"array", "null"}, "items": typeSchema(root, t.Elem(), Field{}, path+"[]"),
		}
	case shapePresent:
		return map[string]any{"type": []string{"object", "boolean", "null"}}
	}
	return scalarSchema(t, f)
}

func scalarSchema(t reflect.Type, f Field) map[string]any {
	s := make(map[string]any)
	switch {
	case t == typeDuration:
		s["type"], s["pattern"] = []string{"string", "integer"}, durationPattern
	case t == TypeSize:
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
	if len(f.Enum) > 0 {
		s["type"], s["enum"] = "string", f.Enum
		if f.Key == "version" { // YAML reads 0.1 as a number
			s["type"], s["enum"] = []string{"string", "number"}, []any{Version, 0.1}
		}
	}
	if f.def != "" {
		s["default"] = jsonValue(t, f.def)
	}
	if f.Min != "" && (s["type"] == "integer" || s["type"] == "number") {
		s["minimum"] = jsonValue(t, f.Min)
	}
	return s
}

// jsonValue converts a tag's text to the JSON type of the field.
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
