package api_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"example.org/slipway/agent/api"
)

// TestKeys checks that all keys of slipway agent status --json are in snake case.
func TestKeys(t *testing.T) {
	snake, marshaler := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`), reflect.TypeFor[json.Marshaler]()
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		if seen[typ] || typ.Implements(marshaler) {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			walk(typ.Elem())
		case reflect.Struct:
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if !f.IsExported() || name == "-" {
					continue
				}
				if !(f.Anonymous && name == "") && !snake.MatchString(name) {
					t.Errorf("%v.%s has the key %q", typ, f.Name, name)
				}
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[api.Status]())
	if len(seen) < 15 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}
