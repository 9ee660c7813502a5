package objtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// wantKeys checks what List yields.
func (t *suite) wantKeys(prefix, after string, want []string) {
	t.Helper()
	var got []string
	for info, err := range t.s.List(t.Context(), prefix, after) {
		t.must(err, "List")
		got = append(got, info.Key)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("List(%q, %q): -want +got\n%s", prefix, after, diff)
	}
}

func (t *suite) list() {
	t.wantKeys("", "", nil)
	keys := []string{"a/1", "a/2", "a/b/1", "ab", "b/1", "c"}
	for i, key := range keys {
		t.mustPut(key, Content(uint64(i), i))
	}
	state := t.mustSuspend(t.mustUpload([]byte("unfinished")))
	for _, tt := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", keys},
		{"a", "", []string{"a/1", "a/2", "a/b/1", "ab"}},
		{"a/", "", []string{"a/1", "a/2", "a/b/1"}},
		{"a/b", "", []string{"a/b/1"}},
		{"a/b/", "", []string{"a/b/1"}},
		{"a/b/1", "", []string{"a/b/1"}},
		{"a/b/1/", "", nil},
		{"x", "", nil},
		{"x/y/", "", nil},
		{"", "a/2", []string{"a/b/1", "ab", "b/1", "c"}},
		{"", "a/25", []string{"a/b/1", "ab", "b/1", "c"}},
		{"", "a", keys},
		{"", "a/", keys},
		{"", "a/b", []string{"a/b/1", "ab", "b/1", "c"}},
		{"", "c", nil},
		{"", "z", nil},
		{"a/", "a/1", []string{"a/2", "a/b/1"}},
		{"a/", "b", nil},
		{"b", "a", []string{"b/1"}},
	} {
		t.wantKeys(tt.prefix, tt.after, tt.want)
	}
	i := 0
	for info, err := range t.s.List(t.Context(), "", "") {
		t.must(err, "List")
		stat, err := t.s.Stat(t.Context(), info.Key)
		t.must(err, "Stat")
		if info.Size != int64(i) || !info.ModTime.Equal(stat.ModTime) {
			t.Errorf("List: got %+v, Stat tells %+v", info, stat)
		}
		i++
	}
	t.must(t.s.Abandon(t.Context(), state), "Abandon")
}

// listOrder uses names that sort differently as directories than as keys: '-', '.' and '+' come
// before '/', digits and letters after it.
func (t *suite) listOrder() {
	var keys []string
	for _, a := range []string{"a", "a-b", "a.b", "a+b", "a0", "a=", "aa", "A", "_", "-"} {
		for _, b := range []string{"x", "x-", "x.y", "x0"} {
			keys = append(keys, a+"/"+b+"/data", a+"/"+b+".json")
		}
	}
	for _, key := range keys {
		t.mustPut(key, nil)
	}
	slices.Sort(keys)
	t.wantKeys("", "", keys)
	for i, key := range keys {
		t.wantKeys("", key, keys[i+1:])
	}
	for _, prefix := range []string{"a", "a/", "a-", "a/x", "a/x.", "a/x/", "a+b/x0", "A/"} {
		var want []string
		for _, key := range keys {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		t.wantKeys(prefix, "", want)
		t.wantKeys(prefix, want[0], want[1:])
	}
}

func (t *suite) listStops() {
	for i := range 10 {
		t.mustPut(fmt.Sprintf("s/%d/x", i), nil)
	}
	n := 0
	for _, err := range t.s.List(t.Context(), "s/", "") {
		t.must(err, "List")
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("List: yielded %d objects, want 3", n)
	}
}

// listDuringChanges checks that objects which exist the whole time are listed while others come and
// go.
func (t *suite) listDuringChanges() {
	var want []string
	for i := range 30 {
		key := fmt.Sprintf("l/%02d/stays", i)
		t.mustPut(key, nil)
		want = append(want, key)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			key := fmt.Sprintf("l/%02d-goes/x", i%30)
			if err := t.s.Put(t.Context(), key, nil, false); err != nil {
				t.Errorf("Put: %v", err)
			}
			if err := t.s.Delete(t.Context(), key); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for range 5 {
		var all, got []string
		for info, err := range t.s.List(t.Context(), "l/", "") {
			t.must(err, "List")
			all = append(all, info.Key)
			if strings.HasSuffix(info.Key, "/stays") {
				got = append(got, info.Key)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("List during changes: -want +got\n%s", diff)
		}
		if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("List during changes is not in order or lists a key twice: %q", all)
		}
	}
}
