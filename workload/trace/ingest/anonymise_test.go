package ingest_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/ingest"
)

func TestAnonymise(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	a, err := ingest.NewAnonymiser(key, &ingest.AnonymiserOptions{RoundSizes: 4096, Shift: -time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p := a.Pseudonym
	when := time.Date(2024, 3, 1, 10, 0, 2, 0, time.UTC)
	for _, tc := range []struct{ uri, want string }{
		{"/v2/", "v2"},
		{"/v2/team/app/manifests/latest", "v2/" + p("team") + "/" + p("app") + "/manifests/" + p("latest")},
		{"/v2/v2/blobs/manifests/v2", "v2/" + p("v2") + "/" + p("blobs") + "/manifests/" + p("v2")},
		{"/v2/app/blobs/sha256:ab", "v2/" + p("app") + "/blobs/" + p("sha256:ab")},
		{"/v2/app/blobs/uploads/?mount=sha256:ab&from=secret", "v2/" + p("app") + "/blobs/uploads/"},
		{"/v2/app/blobs/uploads/77?digest=sha256:ab", "v2/" + p("app") + "/blobs/uploads/" + p("77")},
		{"/login/joe?password=x", p("login") + "/" + p("joe")},
	} {
		r := trace.Record{Host: "h", Method: "GET", RemoteAddr: "10.0.0.7", User: "joe", Referer: "x", URI: tc.uri, UserAgent: "docker",
			Written: 4097, Duration: time.Second, Digest: "sha256:ab", ID: "1", Time: when, Status: 200}
		a.Anonymise(&r)
		want := trace.Record{Host: p("h"), Method: "GET", RemoteAddr: p("10.0.0.7"), URI: tc.want, UserAgent: "docker",
			Written: 8192, Duration: time.Second, Digest: p("sha256:ab"), ID: p("1"), Time: when.Add(-time.Hour), Status: 200}
		if diff := cmp.Diff(want, r); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.uri, diff)
		}
		if trace.ParseURI(r.URI).Kind != trace.ParseURI(tc.uri).Kind {
			t.Errorf("%s: its kind has become %v", tc.uri, trace.ParseURI(r.URI).Kind)
		}
	}
	if p("a") == p("b") || len(p("a")) != 16 || p("") != "" {
		t.Errorf("pseudonyms %q, %q, %q", p("a"), p("b"), p(""))
	}
	other, err := ingest.NewAnonymiser(bytes.Repeat([]byte{8}, 32), nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.Pseudonym("a") == p("a") {
		t.Error("the key does not matter")
	}
	if _, err := ingest.NewAnonymiser(key[:8], nil); err == nil {
		t.Error("a short key was taken")
	}
}
