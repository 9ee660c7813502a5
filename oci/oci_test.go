package oci_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"example.org/slipway/oci"
)

// These are the specification's expressions, anchored.
var (
	specName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	specTag  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// TestNames compares the scanners with the specification's expressions.
func TestNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.StringMatching(`[a-c0/._-]{0,12}`),
			rapid.StringMatching(`([a-z0-9]{1,3}(\.|_|__|-{1,4}|/)){0,6}[a-z0-9]{1,3}`),
			rapid.StringMatching(`[a-zA-Z0/._:é -]{0,8}`),
			rapid.StringMatching(`[a-z/]{250,260}`),
			rapid.StringMatching(`[a-zA-Z0-9._-]{126,130}`),
			rapid.String(),
		).Draw(t, "s")
		if got, want := oci.ValidName(s), len(s) <= oci.MaxNameLength && specName.MatchString(s); got != want {
			t.Errorf("ValidName(%q) = %v, the specification says %v", s, got, want)
		}
		if got, want := oci.ValidTag(s), specTag.MatchString(s); got != want {
			t.Errorf("ValidTag(%q) = %v, the specification says %v", s, got, want)
		}
		if err := oci.CheckName(s); (err == nil) != oci.ValidName(s) || (err != nil && !oci.HasCode(err, oci.CodeNameInvalid)) {
			t.Errorf("CheckName(%q) = %v", s, err)
		}
		if err := oci.CheckTag(s); (err == nil) != oci.ValidTag(s) || (err != nil && !oci.HasCode(err, oci.CodeTagInvalid)) {
			t.Errorf("CheckTag(%q) = %v", s, err)
		}
	})
	for s, want := range map[string]bool{"a\n": false, "a": true, "a__b": true, "a___b": false, "a-__b": false, "a_-b": false, "a--b": true, strings.Repeat("a", 255): true, strings.Repeat("a", 256): false} {
		if oci.ValidName(s) != want {
			t.Errorf("ValidName(%q) = %v", s, !want)
		}
	}
}

func TestDigests(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for d, want := range map[oci.Digest]bool{
		oci.Digest("sha256:" + hex): true, oci.Digest("sha512:" + hex + hex): true,
		"": false, "sha256:": false, oci.Digest("sha256:" + hex[1:]): false, oci.Digest("sha256:0" + hex): false,
		oci.Digest("sha512:" + hex): false, oci.Digest("sha256:" + hex + hex): false, oci.Digest("SHA256:" + hex): false,
		oci.Digest("sha256:" + strings.ToUpper(hex)): false, oci.Digest("sha384:" + hex + hex[:32]): false, oci.Digest("sha256:" + hex[:63] + "\n"): false,
		oci.Digest("sha256:" + strings.Repeat("../", 21) + "x"): false,
	} {
		if got := oci.ValidDigest(d); got != want {
			t.Errorf("ValidDigest(%q) = %v", d, got)
		}
		if want && d.Validate() != nil {
			t.Errorf("%q is valid here and not in go-digest: %v", d, d.Validate())
		}
	}
}

func TestReferrersTag(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for d, want := range map[oci.Digest]string{
		oci.Digest("sha256:" + hex):       "sha256-" + hex,
		oci.Digest("sha512:" + hex + hex): "sha512-" + hex,
		"test+algorithm+using+algorithm+separators+and+lots+of+characters+to+excercise+overall+truncation:alsoSome=InTheEncodedSectionToShowHyphenReplacementAndLotsAndLotsOfCharactersToExcerciseEncodedTruncation": "test-algorithm-using-algorithm-s-alsoSome-InTheEncodedSectionToShowHyphenReplacementAndLotsAndLot",
	} {
		if got := oci.ReferrersTag(d); got != want || !oci.ValidTag(got) {
			t.Errorf("ReferrersTag(%q) = %q, want %q", d, got, want)
		}
	}
}

// FuzzParse checks that an accepted path is the path that its parts make, and that its
// parts are valid.
func FuzzParse(f *testing.F) {
	d := string(oci.SHA256(nil))
	for _, p := range []string{"/v2/", "/v2", "/v2/_catalog", "/v2/a/b/blobs/" + d, "/v2/a/manifests/x", "/v2/a/blobs/uploads/", "/v2/a/blobs/uploads",
		"/v2/a/blobs/uploads/id", "/v2/a/tags/list", "/v2/a/referrers/" + d, "/v2/a/_ext/x/y", "/v2/_ext", "/v2/blobs/uploads/manifests/x", "/v2/a/b/_x/manifests/y",
		"/v2//a", "/v2/a/../b/tags/list", "/v2/a%2fb/tags/list", "/v2/%2e%2e/tags/list", "/v2x", "/", "", "/v2/a/manifests/sha256:abc", "/v2/A/tags/list",
		"/v2/a/manifests/%20", "/v2/a/manifests/?", "/v2/uploads/blobs/uploads/"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			return
		}
		r, ok, err := oci.Parse(u)
		if under := u.Path == "/v2" || strings.HasPrefix(u.Path, "/v2/"); ok != under {
			t.Fatalf("Parse(%q): ok is %v", raw, ok)
		}
		if err != nil {
			var e *oci.Error
			if !errors.As(err, &e) || e.HTTPStatus() < 400 || e.HTTPStatus() > 404 || len(e.Message) > 500 {
				t.Errorf("Parse(%q): %v", raw, err)
			}
			return
		}
		if !ok {
			return
		}
		if r.Kind == oci.KindNone {
			t.Fatalf("Parse(%q) = %+v", raw, r)
		}
		if r.Repo != "" && !oci.ValidName(r.Repo) || r.Repo == "" && r.Kind != oci.KindPing && r.Kind != oci.KindCatalog && r.Kind != oci.KindExtension {
			t.Errorf("Parse(%q): repository %q", raw, r.Repo)
		}
		if (r.Kind == oci.KindBlob || r.Kind == oci.KindReferrers) && !oci.ValidDigest(oci.Digest(r.Ref)) {
			t.Errorf("Parse(%q): digest %q", raw, r.Ref)
		}
		if r.Kind != oci.KindExtension && strings.Contains(r.Ref, "/") {
			t.Errorf("Parse(%q): reference %q", raw, r.Ref)
		}
		path := r.Path()
		if plain := strings.TrimSuffix(path, "/"); u.Path != path && u.Path != plain {
			t.Errorf("Parse(%q).Path() = %q", raw, path)
		}
		again, ok, err := oci.Parse(&url.URL{Path: path})
		if diff := cmp.Diff(r, again); !ok || err != nil || diff != "" {
			t.Errorf("Parse(%q) again: %v, %v\n%s", raw, ok, err, diff)
		}
	})
}

// FuzzUnmarshalError checks that any answer of a registry becomes an error with a code
// and a status, and that our own errors come back unchanged.
func FuzzUnmarshalError(f *testing.F) {
	f.Add(404, []byte(`{"errors":[{"code":"BLOB_UNKNOWN","message":"m","detail":{"a":1}}]}`))
	f.Add(500, []byte(`{"errors":[]}`))
	f.Add(401, []byte(`<html>`))
	f.Add(429, []byte(``))
	f.Add(400, []byte(`{"errors":[{"code":1}]}`))
	f.Add(200, []byte(`{"errors":[{"code":"X","detail":null},{"code":"Y"}]}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := oci.UnmarshalError(status, body)
		if e == nil || e.Code == "" || e.Error() == "" || e.Status != status {
			t.Fatalf("UnmarshalError(%d, %q) = %+v", status, body, e)
		}
		again := oci.UnmarshalError(status, oci.MarshalErrors(e))
		if again.Code != e.Code || again.Message != e.Message {
			t.Errorf("UnmarshalError(%d, %q) = %+v, and marshalled and read again %+v", status, body, e, again)
		}
		detail := func(v any) string {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		if detail(e.Detail) != detail(again.Detail) {
			t.Errorf("detail %s became %s", detail(e.Detail), detail(again.Detail))
		}
	})
}

func TestErrors(t *testing.T) {
	cause := errors.New("the disk is on fire")
	e := oci.Errorf(oci.CodeBlobUnknown, "no blob %d: %w", 1, cause)
	wrapped := fmt.Errorf("get: %w", e)
	if !oci.HasCode(wrapped, oci.CodeBlobUnknown) || oci.HasCode(wrapped, oci.CodeNameUnknown) || oci.HasCode(nil, oci.CodeBlobUnknown) {
		t.Error("HasCode")
	}
	if !errors.Is(wrapped, cause) || !errors.Is(wrapped, &oci.Error{Code: oci.CodeBlobUnknown}) || errors.Is(wrapped, &oci.Error{Code: oci.CodeDenied}) {
		t.Error("errors.Is")
	}
	for _, c := range []struct {
		err  *oci.Error
		want int
	}{{e, 404}, {&oci.Error{Code: oci.CodeUnknown}, 500}, {&oci.Error{Code: "INVENTED"}, 500}, {&oci.Error{Code: oci.CodeManifestInvalid, Status: 413}, 413}, {&oci.Error{Code: oci.CodeTooManyRequests}, http.StatusTooManyRequests}} {
		if got := c.err.HTTPStatus(); got != c.want {
			t.Errorf("status of %v: got %d, want %d", c.err, got, c.want)
		}
	}
	// The client must not see the cause.
	hidden := &oci.Error{Code: oci.CodeUnknown, Message: "failed", Err: cause, Detail: func() {}}
	if b := oci.MarshalErrors(hidden); bytes.Contains(b, []byte("fire")) || oci.UnmarshalError(500, b).Code != oci.CodeUnknown {
		t.Errorf("got %s", b)
	}
}

func TestClientOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7:1234":            "192.0.2.7",
		"192.0.2.7":                 "192.0.2.7",
		"[::ffff:192.0.2.7]:1":      "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"2001:db8:1:2:3:4:5:6":      "2001:db8:1:2::",
		"[fe80::1%eth0]:80":         "fe80::",
		"@":                         "invalid IP",
		"":                          "invalid IP",
	} {
		if got := oci.ClientOf(in).String(); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
