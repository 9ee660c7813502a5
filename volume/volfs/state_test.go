package volfs

import (
	"encoding/json"
	"testing"
)

// FuzzState feeds the reader of the state file. What it accepts is consistent and is accepted
// again.
func FuzzState(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"version":1,"connection":7}`, `{"version":1,"connection":8}`,
		`{"version":1,"connection":7,"next":3,"init":{"minor":40,"flags":549755813888},"files":[{"node":2,"size":4096,"mapping":{"name":"a","id":"v1"}}],"opens":[{"handle":9,"node":2}]}`,
		`{"version":1,"connection":7,"next":3,"files":[{"node":2,"mapping":{"name":"a/b"}}]}`,
		`{"version":1,"connection":7,"next":3,"files":[{"node":1,"mapping":{"name":"a"}}]}`,
		`{"version":1,"connection":7,"next":9,"files":[{"node":2,"mapping":{"name":"a"}},{"node":3,"mapping":{"name":"a"}}]}`,
		`{"version":1,"connection":7,"next":9,"files":[{"node":2,"size":-1,"mapping":{"name":"a"}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := parseState(b, 7)
		if err != nil || st == nil {
			return
		}
		for _, file := range st.Files {
			if !validName(file.Mapping.Name) || file.Node >= st.Next || file.Size < 0 {
				t.Fatalf("accepted %+v, next %d", file, st.Next)
			}
		}
		again, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := parseState(again, 7); err != nil || st == nil {
			t.Fatalf("read again: %v", err)
		}
	})
}
