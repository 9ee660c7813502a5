package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server"
)

// counts returns the counters of a name that are not zero, by the values of their labels.
func (b *bed) counts(name string) map[string]float64 {
	b.t.Helper()
	got := map[string]float64{}
	for _, m := range b.families()[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		if v := m.GetCounter().GetValue(); v != 0 {
			got[strings.Join(labels, " ")] = v
		}
	}
	return got
}

// TestPullCounts checks that what clients get is counted by its kind and the first part of the
// repository's name, and that what they do not get is not counted.
func TestPullCounts(t *testing.T) {
	b := newBed(t, setup{})
	b.pushImage("team/app/web", 1, "v1")
	d := b.push("team/app/web", random(9, 5000))
	b.pushImage("plain", 2, "v1")
	if n := len(b.families()["slipway_server_pulls_total"].GetMetric()); n != 2 {
		t.Errorf("%d series before anything was pulled, want 2", n)
	}
	blob := "/v2/team/app/web/blobs/" + string(d)
	for _, e := range [][]string{
		{"GET", "/v2/team/app/web/manifests/v1"}, {"GET", "/v2/plain/manifests/v1"},
		{"GET", blob}, {"GET", blob, "Range: bytes=10-19"},
		// None of these is a pull.
		{"HEAD", "/v2/team/app/web/manifests/v1"}, {"HEAD", blob}, {"GET", "/v2/team/app/web/tags/list"},
		{"GET", "/v2/team/app/web/manifests/none"}, {"GET", "/v2/made/up/manifests/v1"}, {"GET", blob, "Range: bytes=9000-"},
	} {
		b.ask(e[0], e[1], nil, e[2:]...)
	}
	want := map[string]float64{"manifest team": 1, "manifest -": 1, "blob team": 2}
	if diff := cmp.Diff(want, b.counts("slipway_server_pulls_total")); diff != "" {
		t.Errorf("pulls (-want +got):\n%s", diff)
	}
	wantErrors := map[string]float64{"MANIFEST_UNKNOWN": 2, "RANGE_INVALID": 1}
	if diff := cmp.Diff(wantErrors, b.counts("slipway_server_errors_total")); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

// TestPullNamespaces checks that the number of series is bounded, however many namespaces there
// are, and that no pull is lost.
func TestPullNamespaces(t *testing.T) {
	b := newBed(t, setup{})
	const namespaces = 70
	for i := range namespaces {
		repo := fmt.Sprintf("team%d/app", i)
		d := b.push(repo, random(1, 100))
		b.ask("GET", "/v2/"+repo+"/blobs/"+string(d), nil)
	}
	got, sum := b.counts("slipway_server_pulls_total"), 0.0
	for _, n := range got {
		sum += n
	}
	if len(got) != 65 || got["blob *"] != namespaces-64 || sum != namespaces {
		t.Errorf("%d series with %v pulls, %v of them of other namespaces, want 65, %d, %d", len(got), sum, got["blob *"], namespaces, namespaces-64)
	}
}

// foreign answers with an error that an upstream may have made up.
type foreign struct{ oci.Registry }

func (foreign) GetManifest(context.Context, string, string) (*oci.Manifest, error) {
	return nil, &oci.Error{Code: "MADE_UP_17", Message: "no"}
}

// TestForeignErrorCode checks that a code outside the specification does not create a new series.
func TestForeignErrorCode(t *testing.T) {
	b := newBed(t, setup{})
	b.srv = server.New(foreign{b.reg}, &server.Options{Logger: slog.New(slog.DiscardHandler)})
	b.srv.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v2/a/manifests/v1", nil))
	if diff := cmp.Diff(map[string]float64{"OTHER": 1}, b.counts("slipway_server_errors_total")); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}
