package registry_test

import (
	"reflect"
	"strings"
	"testing"
	"unicode"

	"example.org/slipway/registry/retention"

	"example.org/slipway/registry/backup"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry"
)

// TestReportKeys checks that the reports that commands print as JSON have the keys that scripts
// expect, in one style.
func TestReportKeys(t *testing.T) {
	for _, rep := range []any{registry.CollectReport{}, check.Report{}, retention.Report{}, backup.Report{}} {
		checkKeys(t, reflect.TypeOf(rep))
	}
}

func checkKeys(t *testing.T, typ reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		var want strings.Builder
		for j, r := range f.Name {
			if unicode.IsUpper(r) && j > 0 {
				want.WriteByte('_')
			}
			want.WriteRune(unicode.ToLower(r))
		}
		if got, _, _ := strings.Cut(f.Tag.Get("json"), ","); got != want.String() {
			t.Errorf("%s.%s: got the key %q, want %q", typ, f.Name, got, want.String())
		}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			checkKeys(t, f.Type.Elem())
		}
	}
}
