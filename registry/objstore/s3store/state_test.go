package s3store_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"example.org/slipway/registry/objstore/s3store"
)

// TestPartSizes checks that every object that S3 can hold fits into 10,000 parts if its size is
// announced. An object of unknown size can still be large.
func TestPartSizes(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	total := func(first int64) (sum int64, parts int) {
		for parts < s3store.MaxParts {
			sum += s3store.Grown(first, parts)
			parts++
		}
		return sum, parts
	}
	for _, tt := range []struct {
		configured, hint, first int64
	}{
		{16 * mib, -1, 16 * mib},
		{16 * mib, 0, 16 * mib},
		{16 * mib, 100 * gib, 16 * mib},
		{16 * mib, 125 * gib, 17 * mib},
		{16 * mib, 1000 * gib, 129 * mib},
		{16 * mib, s3store.MaxObject, 512 * mib},
		{16 * mib, 1 << 62, 512 * mib},
		{5 * mib, 50 * gib, 7 * mib},
	} {
		first := s3store.PartSize(tt.configured, tt.hint)
		if first != tt.first {
			t.Errorf("part size for %d bytes, configured %d: got %d, want %d", tt.hint, tt.configured, first, tt.first)
		}
		if sum, _ := total(first); sum < min(tt.hint, 4*s3store.MaxObject/5) {
			t.Errorf("an object of %d bytes does not fit: %d parts hold %d", tt.hint, s3store.MaxParts, sum)
		}
	}
	if sum, _ := total(16 * mib); sum != 968*gib+768*mib {
		t.Errorf("10,000 parts that begin with 16 MiB hold %d bytes, want %d", sum, 968*gib+768*mib)
	}
	for n := range s3store.MaxParts {
		if size := s3store.Grown(s3store.MinPart, n); size < s3store.MinPart || size > s3store.MaxPart {
			t.Fatalf("part %d has %d bytes", n, size)
		}
	}
	if err := s3store.CheckParts(s3store.MaxParts - 1); err != nil {
		t.Errorf("part 10,000: got %v, want no error", err)
	}
	if err := s3store.CheckParts(s3store.MaxParts); err == nil {
		t.Error("part 10,001: got no error")
	}
}

const (
	testID     = "ABCDEFGHIJKLMNOPQRSTUVWX23"
	testWriter = "ZYXWVUTSRQPONMLKJIHGFEDC76"
)

func TestParseState(t *testing.T) {
	good := testID + "." + testWriter + ".1234"
	again, name, ok := s3store.ParseState(good)
	if want := testID + "/state-" + testWriter + "-1234"; !ok || again != good || name != want {
		t.Errorf("ParseState(%q): got %q, %q, %t; want %q", good, again, name, ok, want)
	}
	for _, bad := range []string{
		"", ".", "..", testID, testID + "." + testWriter, testID + "." + testWriter + ".", good + ".", good + "x",
		testID + "." + testWriter + ".-1", testID + "." + testWriter + ".01", testID + "." + testWriter + ".+1",
		testID + "." + testWriter + ".99999999999", strings.ToLower(good), "../" + good, good[1:], testID + "/" + testWriter + ".1",
	} {
		if _, _, ok := s3store.ParseState(bad); ok {
			t.Errorf("ParseState(%q): took it", bad)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add(testID + "." + testWriter + ".1234")
	f.Add("../../x.y.1")
	f.Fuzz(func(t *testing.T, s string) {
		again, name, ok := s3store.ParseState(s)
		if !ok {
			return
		}
		if again != s {
			t.Errorf("ParseState(%q): formats as %q", s, again)
		}
		if strings.Count(name, "/") != 1 || strings.Contains(name, "..") {
			t.Errorf("ParseState(%q): object name %q leaves the upload's directory", s, name)
		}
	})
}

func record(segments, rest string) string {
	return fmt.Sprintf(`{"version":1,"part":16777216,"segments":[%s]%s}`+"\n", segments, rest)
}

func TestDecodeState(t *testing.T) {
	staged := `{"name":"00001-` + testWriter + `","size":16777216}`
	keyed := `{"etag":"abc","size":5242880}`
	for _, tt := range []struct {
		name, in string
		stored   int64
		ok       bool
	}{
		{"empty", record("", ""), 0, true},
		{"staged", record(staged+","+staged, ""), 32 << 20, true},
		{"keyed", record(keyed, `,"key":"a/b","uploadId":"xyz"`), 5 << 20, true},
		{"keyed without parts", record("", `,"key":"a/b"`), 0, true},
		{"before", record("", `,"before":"`+testID+"."+testWriter+`.0"`), 0, true},
		{"no newline", strings.TrimSuffix(record("", ""), "\n"), 0, false},
		{"version", strings.Replace(record("", ""), "1", "2", 1), 0, false},
		{"unknown field", record("", `,"more":1`), 0, false},
		{"two values", strings.TrimSuffix(record("", ""), "\n") + "{}\n", 0, false},
		{"name elsewhere", record(`{"name":"../../a","size":16777216}`, ""), 0, false},
		{"small segment", record(`{"name":"00001-`+testWriter+`","size":100}`, ""), 0, false},
		{"negative segment", record(`{"name":"00001-`+testWriter+`","size":-100}`, ""), 0, false},
		{"etag in staged", record(keyed, ""), 0, false},
		{"name in keyed", record(staged, `,"key":"a/b","uploadId":"xyz"`), 0, false},
		{"upload without key", record("", `,"uploadId":"xyz"`), 0, false},
		{"bad key", record("", `,"key":"../a"`), 0, false},
		{"reserved key", record("", `,"key":"slipway/uploads/x"`), 0, false},
		{"bad before", record("", `,"before":"x"`), 0, false},
		{"part size", strings.Replace(record("", ""), "16777216", "16", 1), 0, false},
		{"nothing", "", 0, false},
		{"newline", "\n", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, stored, err := s3store.DecodeState(strings.NewReader(tt.in))
			if (err == nil) != tt.ok || stored != tt.stored {
				t.Errorf("got %d bytes, %v; want %d, ok %t", stored, err, tt.stored, tt.ok)
			}
		})
	}
}

func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(record("", "")))
	f.Add([]byte(record(`{"etag":"abc","size":5242880}`, `,"key":"a/b","uploadId":"xyz"`)))
	f.Add([]byte(record(`{"name":"00001-`+testWriter+`","size":16777216}`, "")))
	f.Fuzz(func(t *testing.T, b []byte) {
		again, stored, err := s3store.DecodeState(bytes.NewReader(b))
		if err != nil {
			return
		}
		twice, same, err := s3store.DecodeState(bytes.NewReader(again))
		if err != nil || same != stored || !bytes.Equal(twice, again) {
			t.Errorf("decoded %q, encoded %q, then %v", b, again, err)
		}
	})
}
