package rbd_test

import (
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/rbd"
)

// TestOptions checks that impossible options are refused before any request, and that a binary
// without librbd says how to get one with it.
func TestOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]rbd.Options{
		"object size":         {ObjectSize: 3 << 12},
		"could change":        {Namespace: "a", Clones: "a"},
		"reserved for leases": {Namespace: "a", Clones: rbd.LeaseNamespace("a")},
		"not longer":          {Timeout: time.Minute, LeaseTime: time.Minute},
	} {
		if !rbd.Available {
			want = "make build-ceph"
		}
		_, err := rbd.Open(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got error %v, want one of %q", o, err, want)
		}
	}
	p := volref.Place{Driver: rbd.Driver, Cluster: "f", Pool: "p", Namespace: "n"}
	c := volref.Credential{User: "u", Key: "k", Monitors: "m", Clones: "c"}
	want := rbd.Options{Monitors: "m", User: "u", Key: "k", Pool: "p", Namespace: "n", Clones: "c", Cluster: "f"}
	if got := rbd.Connect(p, c); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
