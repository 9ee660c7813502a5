package volumeworker

import (
	"errors"
	"fmt"
	"testing"

	"example.org/slipway/config"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// TestStorageErrors checks that errors which a caller distinguishes survive the way between
// processes.
func TestStorageErrors(t *testing.T) {
	for _, want := range []error{block.ErrNotFound, block.ErrExists, block.ErrNotCommitted, block.ErrCommitted, block.ErrInUse, block.ErrFull, block.ErrAway, block.ErrDenied, errNotConnected} {
		code := codeOf(fmt.Errorf("volume x: %w", want))
		got := error(&remoteError{"volume x: " + want.Error(), storageErrors[code]})
		if !errors.Is(got, want) || got.Error() != "volume x: "+want.Error() {
			t.Errorf("%v arrives as %v with code %q", want, got, code)
		}
	}
	if code := codeOf(errors.New("another one")); code != "" || errors.Is(&remoteError{"another one", nil}, block.ErrAway) {
		t.Errorf("got code %q", code)
	}
}

func TestConnected(t *testing.T) {
	none, file := &config.AgentVolumes{}, &config.AgentVolumes{File: config.AgentVolumesFile{Dir: "/d"}}
	for _, p := range []volref.Place{{Driver: "file", Cluster: "x"}, {Driver: "rbd", Cluster: "x"}, {Driver: "tape"}} {
		if err := Connected(none, p); !errors.Is(err, errNotConnected) {
			t.Errorf("%+v without storage: %v", p, err)
		}
	}
	if err := Connected(file, volref.Place{Driver: "file", Cluster: "x"}); err != nil {
		t.Error(err)
	}
	if err := Connected(file, volref.Place{Driver: "rbd"}); !errors.Is(err, errNotConnected) {
		t.Errorf("got %v", err)
	}
}
