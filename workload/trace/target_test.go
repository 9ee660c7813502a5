package trace_test

import (
	"testing"

	"example.org/slipway/workload/trace"
)

func TestParseURI(t *testing.T) {
	for uri, want := range map[string]trace.Target{
		"v2":                             {Kind: trace.Ping},
		"/v2/":                           {Kind: trace.Ping},
		"v2/_catalog":                    {Kind: trace.Catalog},
		"/v2/_catalog?":                  {Kind: trace.Catalog},
		"v2/a7e6b589/manifests/817c8a39": {trace.Manifest, "a7e6b589", "817c8a39"},
		"v2/a/b/c/d/manifests/v2":        {trace.Manifest, "a/b/c/d", "v2"},
		"v2/a/manifests/manifests/blobs": {trace.Manifest, "a/manifests", "blobs"},
		"v2/a/blobs/blobs/x":             {trace.Blob, "a/blobs", "x"},
		"/v2/a/b/blobs/sha256:00?ns=x":   {trace.Blob, "a/b", "sha256:00"},
		"v2/a/b/blobs/uploads/1f2e":      {trace.Upload, "a/b", "1f2e"},
		"/v2/a/b/blobs/uploads/":         {trace.Upload, "a/b", ""},
		"/v2/a/b/blobs/uploads":          {trace.Upload, "a/b", ""},
		"/v2/a/b/blobs/uploads/?mount=sha256:1&from=x":          {trace.Upload, "a/b", ""},
		"/v2/a/b/blobs/uploads/u?digest=sha256%3A2&_state=blob": {trace.Upload, "a/b", "u"},
		"/v2/a/tags/list?n=3":                                   {trace.Tags, "a", ""},
		"/v2/a/referrers/sha256:1":                              {trace.Referrers, "a", "sha256:1"},
		"":                                                      {},
		"/":                                                     {},
		"v22/a/manifests/b":                                     {},
		"/v2/manifests/b":                                       {},
		"/v2//manifests/b":                                      {},
		"/v2/a/tags/other":                                      {},
		"/metrics":                                              {},
		"/v2/a/manifests/":                                      {},
		"v2/_slipway/gear/files/x":                              {},
	} {
		if got := trace.ParseURI(uri); got != want {
			t.Errorf("ParseURI(%q) = %+v, want %+v", uri, got, want)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("/v2/a/b/blobs/uploads/u?digest=x")
	f.Fuzz(func(t *testing.T, uri string) {
		got := trace.ParseURI(uri)
		if (got.Kind == trace.Other || got.Kind == trace.Ping || got.Kind == trace.Catalog) != (got.Repo == "") {
			t.Errorf("ParseURI(%q) = %+v", uri, got)
		}
	})
}
