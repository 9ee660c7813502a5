package tenfield

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"example.org/slipway/workload/trace/logs/internal/values"
)

// FuzzParseFlat compares the fast parser of a record with encoding/json. Whatever the
// fast parser accepts, the slow one must read with the same result.
func FuzzParseFlat(f *testing.F) {
	for _, seed := range []string{
		`{"host": "579633fd", "http.request.duration": 0.256753663, "http.request.method": "GET", "http.request.remoteaddr": "1c6fe6d6", "http.request.uri": "v2", "http.request.useragent": "docker/17.03.1-ce", "http.response.status": 200, "http.response.written": 1367, "id": "dc3ba3e77a", "timestamp": "2017-06-20T01:28:15.962Z"}`,
		`{"id":"a\u0041"}`, `{"id":"é"}`, `{"HOST":"a"}`, `{"host":"a","host":"b"}`, `{"host":null}`, `{"http.request.duration":1e3}`,
		`{"http.request.duration":1234567.25}`, `{"http.request.duration":0.1234567890123}`, `{"http.response.status":200.0}`,
		`{"http.response.written":123456789012345678}`, `{"http.response.written":1234567890123456789}`, `{"http.response.written":012}`,
		`{"http.request.useragent":"a \\(b\\) \"c\" \/ \\","id":"\\","host":"x"}`, `{"id":"\b"}`, `{"id":"\\é"}`,
		`{"digest":"x"} trailing`, `{ }`, `{"id" : "a" , "host" : "b" }`, "{\"id\":\"a\x00\"}", `{"http.request.duration":0}`, `{"http.request.duration":99999999999}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || b[0] != '{' {
			return
		}
		var fast, slow fields
		n, res := parseFlat(b, &fast)
		if res == short && objectEnd(b) > 0 && json.Valid(b) {
			t.Errorf("%q is taken to be cut", b)
		}
		if res != parsed {
			return
		}
		if end := objectEnd(b); end != n {
			t.Fatalf("%q: the object ends at %d, parseFlat says %d", b, end, n)
		}
		if err := parseAny(b[:n], &slow); err != nil {
			t.Fatalf("%q: only the fast way reads it: %v", b[:n], err)
		}
		if !sameFields(fast, slow) {
			t.Errorf("%q: fast %+v, slow %+v", b[:n], fast, slow)
		}
	})
}

// sameFields compares the values of fields, not where they lie in memory.
func sameFields(a, b fields) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range va.NumField() {
		if va.Type().Field(i).Name == "unescaped" {
			continue
		}
		if f := va.Field(i); f.Kind() == reflect.Slice {
			if string(f.Bytes()) != string(vb.Field(i).Bytes()) {
				return false
			}
		} else if f.Int() != vb.Field(i).Int() {
			return false
		}
	}
	return true
}

// FuzzTime compares the fast parser of times with the time package.
func FuzzTime(f *testing.F) {
	for _, s := range []string{"2017-06-20T01:28:15.962Z", "2017-06-20T01:28:15Z", "2016-02-29T23:59:59.123456789Z", "2017-02-29T00:00:00Z",
		"2017-06-31T00:00:00Z", "0000-01-01T00:00:00Z", "2017-06-20T24:00:00Z", "2017-06-20T01:28:15.Z", "2017-06-20T01:28:15,5Z", "2017-06-20T01:28:15+02:00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fast, ok := values.FastTime([]byte(s))
		if !ok {
			return
		}
		// Force the slow parser: append zeros to the fraction, which keeps the value.
		plain := strings.TrimSuffix(s, "Z")
		if !strings.Contains(plain, ".") {
			plain += "."
		}
		slow, err := parseTime([]byte(plain + "0000000000Z"))
		if err != nil || !slow.Equal(fast) {
			t.Errorf("%q: fast %v, slow %v, %v", s, fast, slow, err)
		}
	})
}

func TestFlatIsFast(t *testing.T) {
	const rec = `{"host":"579633fd","http.request.duration":0.256753663,"http.request.method":"GET","http.request.remoteaddr":"1c6fe6d6","http.request.uri":"v2","http.request.useragent":"docker/17.03.1-ce UpstreamClient(Docker-Client/17.03.1-ce \\(linux\\))","http.response.status":200,"http.response.written":1367,"id":"dc3ba3e77a","timestamp":"2017-06-20T01:28:15.962Z"}`
	var f fields
	if n, res := parseFlat([]byte(rec), &f); n != len(rec) || res != parsed {
		t.Errorf("a record of the usual form took the slow way: %d, %d", n, res)
	}
	for i := range rec {
		if _, res := parseFlat([]byte(rec[:max(i, 1)]), &f); res != short {
			t.Errorf("%q: result %d, want short", rec[:i], res)
		}
	}
}
