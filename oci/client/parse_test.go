package client

import (
	"testing"
)

func TestParseLink(t *testing.T) {
	for in, want := range map[string]string{
		`</v2/_catalog?last=b&n=2>; rel="next"`: "/v2/_catalog?last=b&n=2",
		`</x>; rel=next`:                        "/x",
		`</x>`:                                  "/x",
		`</p>; rel="prev", </n>; rel="next"`:    "/n",
		`</p>; rel="prev"`:                      "",
		`</x>; title="a"; REL="Next"`:           "/x",
		`/x; rel=next`:                          "",
		`<`:                                     "",
		``:                                      "",
	} {
		if got := parseLink([]string{in}); got != want {
			t.Errorf("parseLink(%q): got %q, want %q", in, got, want)
		}
	}
}

func TestUploadsAreBounded(t *testing.T) {
	u := newUploads(2)
	u.put("r", "a", upload{size: 1})
	u.put("r", "b", upload{size: 2})
	u.get("r", "a")
	u.put("r", "c", upload{size: 3})
	for id, want := range map[string]bool{"a": true, "b": false, "c": true} {
		if _, got := u.get("r", id); got != want {
			t.Errorf("upload %s: got %t, want %t", id, got, want)
		}
	}
	u.drop("r", "a")
	u.drop("r", "c")
	if len(u.byKey) != 0 || u.order.Len() != 0 {
		t.Errorf("got %d and %d entries left", len(u.byKey), u.order.Len())
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add("0-0")
	f.Add("bytes=0-4")
	f.Add(`</v2/a?n=1>; rel="next"`)
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := parseUploadRange(s); ok && n < 1 {
			t.Errorf("parseUploadRange(%q): got %d", s, n)
		}
		_ = parseLink([]string{s})
	})
}

func FuzzManifestType(f *testing.F) {
	f.Add("", []byte(`{"mediaType":"x/y"}`))
	f.Add("x/y", []byte(`{"schemaVersion":1}`))
	f.Fuzz(func(t *testing.T, header string, b []byte) {
		got, err := manifestType(header, b)
		if (err == nil) != (got != "") {
			t.Errorf("got %q and %v", got, err)
		}
		if err == nil && header != "" && got != header {
			t.Errorf("got %q, want the header's %q", got, header)
		}
	})
}

func FuzzGearName(f *testing.F) {
	f.Add("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	f.Add("sha256:E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	f.Add("sha512:")
	f.Fuzz(func(t *testing.T, s string) {
		name, err := parseGearName(s)
		if err == nil && string(gearDigest(name)) != s {
			t.Errorf("parseGearName(%q) = %x", s, name)
		}
		if err != nil && name != [32]byte{} {
			t.Errorf("parseGearName(%q) = %x, %v", s, name, err)
		}
	})
}
