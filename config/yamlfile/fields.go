package yamlfile

import (
	"encoding"
	"reflect"
	"strings"
	"time"
)

// Field is one key of a section. The tags of its struct field describe it:
//
//	yaml     the key
//	doc      what it does, with its unit
//	default  its value when nobody sets it
//	enum     the words it may be, split by '|'
//	min      its smallest value (a number, size or duration)
//	example  a value to show in the documentation when there is no default
//	secret   "true" when it must not be shown
//
// For a struct of another package, the notes in borrowed take the place of the tags.
//
// The file, the environment, the flags, the defaults, the JSON Schema and the annotated
// example are all derived from this one description.
type Field struct {
	Key     string
	Index   []int
	Type    reflect.Type
	Doc     string
	def     string
	Enum    []string
	Min     string
	example string
	Secret  bool
}

var (
	typeDuration = reflect.TypeFor[time.Duration]()
	TypeSize     = reflect.TypeFor[Size]()
	typePresent  = reflect.TypeFor[Present]()
	typeText     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// FieldsOf lists the keys of a section in the order of the struct. Fields of an
// embedded or inlined struct count as the section's own.
func FieldsOf(t reflect.Type) []Field {
	var fs []Field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, opts, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if !sf.IsExported() || key == "-" {
			continue
		}
		if sf.Type.Kind() == reflect.Struct && (opts == "inline" || sf.Anonymous && key == "") {
			for _, f := range FieldsOf(sf.Type) {
				f.Index = append([]int{i}, f.Index...)
				fs = append(fs, f)
			}
			continue
		}
		if key == "" {
			key = strings.ToLower(sf.Name)
		}
		f := Field{
			Key: key, Index: []int{i}, Type: sf.Type,
			Doc: sf.Tag.Get("doc"), def: sf.Tag.Get("default"),
			Min: sf.Tag.Get("min"), example: sf.Tag.Get("example"),
			Secret: sf.Tag.Get("secret") == "true" || isSecret(sf.Type),
		}
		if e := sf.Tag.Get("enum"); e != "" {
			f.Enum = strings.Split(e, "|")
		}
		if n, ok := borrowed[t.String()+"."+key]; ok {
			f.Doc, f.example, f.Min, f.Enum, f.Secret = n.doc, n.example, n.min, n.enum, n.secret
		}
		fs = append(fs, f)
	}
	return fs
}

// Shape is the form in which a type is written in YAML.
type Shape int

const (
	ShapeSection Shape = iota // a struct
	ShapeMap                  // a map with free keys
	ShapeList
	ShapeScalar
	shapePresent
)

// ShapeOf returns a type's shape. A pointer has the shape of the type that it points to.
func ShapeOf(t reflect.Type) Shape {
	t = deref(t)
	switch {
	case t == typePresent:
		return shapePresent
	case reflect.PointerTo(t).Implements(typeText):
		return ShapeScalar
	}
	switch t.Kind() {
	case reflect.Struct:
		return ShapeSection
	case reflect.Map:
		return ShapeMap
	case reflect.Slice:
		return ShapeList
	default:
		return ShapeScalar
	}
}

func deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// isSecret reports whether a type holds secrets.
func isSecret(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t == reflect.TypeFor[Secret]()
}

// Join appends a key to a path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// ownKeys lists the keys of the section at path that have a meaning: fields and short
// forms.
func ownKeys(t reflect.Type, path string) []string {
	var keys []string
	for _, f := range FieldsOf(t) {
		keys = append(keys, f.Key)
	}
	for _, a := range aliases {
		if parent, key := splitKey(a.from); parent == path {
			keys = append(keys, key)
		}
	}
	return keys
}

// knownKeys lists the keys that the section at path may have: ownKeys, and Distribution's
// keys that have no meaning here.
func knownKeys(t reflect.Type, path string) []string {
	keys := ownKeys(t, path)
	for _, k := range foreignKeys {
		if parent, key := splitKey(k.path); parent == path {
			keys = append(keys, key)
		}
	}
	return keys
}

// splitKey splits a path into its section and the last key.
func splitKey(path string) (parent, key string) {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// elsewhere finds the key with that name in another section, so that a message can name a
// misplaced key by its full path. It returns "" if there is none or more than one.
func elsewhere(t reflect.Type, key string) string {
	var found []string
	var walk func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		for _, f := range FieldsOf(t) {
			at := Join(path, f.Key)
			if f.Key == key {
				found = append(found, at)
			}
			if ShapeOf(f.Type) == ShapeSection {
				walk(deref(f.Type), at)
			}
		}
	}
	walk(t, "")
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// Version is the version of the file's format, which is Distribution's.
const Version = "0.1"
