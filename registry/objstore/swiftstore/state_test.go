package swiftstore_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/swiftstore"
)

const (
	tag  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	etag = "d41d8cd98f00b204e9800998ecf8427e"
)

func TestState(t *testing.T) {
	two := []swiftstore.Segment{{Name: "d000000000000000-" + tag, Size: 10, Etag: etag}, {Name: "d000000000000010-" + tag, Size: 5, Etag: etag}}
	data, err := swiftstore.EncodeState(two)
	must(t, err)
	// Later versions must be able to read what is stored.
	want := `{"version":1,"segments":[{"name":"d000000000000000-` + tag + `","size":10,"etag":"` + etag + `"},{"name":"d000000000000010-` + tag + `","size":5,"etag":"` + etag + `"}]}`
	if string(data) != want {
		t.Errorf("EncodeState: got %s, want %s", data, want)
	}
	segs, size, err := swiftstore.DecodeState(data)
	if diff := cmp.Diff(two, segs); diff != "" || size != 15 || err != nil {
		t.Errorf("DecodeState: got size %d, %v; -want +got\n%s", size, err, diff)
	}
	data, err = swiftstore.EncodeState(nil)
	must(t, err)
	if segs, size, err := swiftstore.DecodeState(data); len(segs) != 0 || size != 0 || err != nil {
		t.Errorf("DecodeState of nothing: got %v, %d, %v", segs, size, err)
	}
	for name, bad := range map[string]string{
		"empty":         "",
		"null":          "null",
		"version":       strings.Replace(want, `"version":1`, `"version":2`, 1),
		"gap":           strings.Replace(want, "d000000000000010", "d000000000000011", 1),
		"kind":          strings.Replace(want, "d000000000000000", "m000000000000000", 1),
		"path":          strings.Replace(want, "d000000000000000-"+tag, "../../x", 1),
		"tag":           strings.Replace(want, tag, "a/b", 1),
		"sign":          strings.Replace(want, "d000000000000000", "d-00000000000000", 1),
		"size":          strings.Replace(want, `"size":5`, `"size":0`, 1),
		"negative size": strings.Replace(want, `"size":10`, `"size":-10`, 1),
		"overflow":      strings.Replace(want, `"size":5`, `"size":9223372036854775807`, 1),
		"etag":          strings.Replace(want, etag, "x", 1),
		"name":          strings.Replace(want, `"name":"d000000000000000-`+tag+`"`, `"name":""`, 1),
	} {
		if segs, _, err := swiftstore.DecodeState([]byte(bad)); err == nil {
			t.Errorf("DecodeState, %s: got %v, no error", name, segs)
		}
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"version":1,"segments":[{"name":"d000000000000000-` + tag + `","size":10,"etag":"` + etag + `"}]}`))
	f.Add([]byte(`{"version":1,"segments":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		segs, size, err := swiftstore.DecodeState(data)
		if err != nil {
			return
		}
		var sum int64
		for _, seg := range segs {
			if objstore.CheckKey(seg.Name) != nil || strings.Contains(seg.Name, "/") || seg.Size <= 0 {
				t.Errorf("DecodeState took segment %+v", seg)
			}
			sum += seg.Size
		}
		if sum != size || size < 0 {
			t.Errorf("DecodeState: got size %d of segments with %d bytes", size, sum)
		}
		again, err := swiftstore.EncodeState(segs)
		if err != nil {
			t.Fatal(err)
		}
		other, _, err := swiftstore.DecodeState(again)
		if diff := cmp.Diff(segs, other, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("the same once more: %v, -want +got\n%s", err, diff)
		}
	})
}

func TestManifestError(t *testing.T) {
	for _, tt := range []struct {
		body           string
		missing, isErr bool
	}{
		{`{"Errors": [["/c/s", "404 Not Found"]]}`, true, true},
		{`{"Errors": [["/c/s", "503 Service Unavailable"], ["/c/t", "404 Not Found"]]}`, true, true},
		{`{"Errors": [["/c/s", "503 Service Unavailable"]]}`, false, true},
		{`{"Errors": [["/c/s", "Etag Mismatch"]]}`, false, false},
		{`{"Errors": [["/c/s"], []]}`, false, false},
		{`Invalid SLO Manifest File`, false, false},
		{``, false, false},
	} {
		err := swiftstore.ManifestError([]byte(tt.body))
		var busy *objstore.BusyError
		if (err != nil) != tt.isErr || errors.Is(err, objstore.ErrNotExist) != tt.missing || tt.isErr && errors.As(err, &busy) == tt.missing {
			t.Errorf("ManifestError(%s) = %v", tt.body, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	const now = "Sun, 22 Nov 2026 02:00:00 GMT"
	for _, tt := range []struct {
		value, date string
		want        time.Duration
	}{
		{"", now, 0},
		{"7", "", 7 * time.Second},
		{"-7", now, 0},
		{"99999999999999999999", now, 0},
		{"Sun, 22 Nov 2026 02:00:30 GMT", now, 30 * time.Second},
		{"Sun, 22 Nov 2026 01:00:30 GMT", now, 0},
		{"Sun, 22 Nov 2026 02:00:30 GMT", "", 0},
		{"soon", now, 0},
	} {
		h := http.Header{"Retry-After": {tt.value}, "Date": {tt.date}}
		if got := swiftstore.RetryAfter(h); got != tt.want {
			t.Errorf("RetryAfter(%q at %q) = %v, want %v", tt.value, tt.date, got, tt.want)
		}
	}
}

// strayTransport answers the first requests with the rest of another answer.
type strayTransport struct{ left int }

func (s *strayTransport) RoundTrip(*http.Request) (*http.Response, error) {
	if s.left--; s.left >= 0 {
		return nil, errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "0"`)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestPastStray(t *testing.T) {
	for _, x := range []struct {
		stray int
		body  string
		ok    bool
	}{{0, "", true}, {2, "", true}, {9, "", false}, {1, "body", false}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/", nil)
		if x.body != "" {
			req, err = http.NewRequestWithContext(t.Context(), http.MethodPut, "http://127.0.0.1/", strings.NewReader(x.body))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := swiftstore.PastStray(&strayTransport{left: x.stray}).RoundTrip(req); (err == nil) != x.ok {
			t.Errorf("%d stray answers, body %q: %v", x.stray, x.body, err)
		}
	}
}
