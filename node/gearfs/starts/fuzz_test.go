package starts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
	"example.org/slipway/node/gearfs/starts"
)

func FuzzProfile(f *testing.F) {
	f.Add(new(starts.Profile).Encode())
	two := starts.Profile{Files: predict.Files([]gear.Name{{1}, {2}}, "so"), Donor: "sha256:d"}
	f.Add(two.Encode())
	f.Add(starts.V1([]gear.Name{{1}, {2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := starts.Parse(b)
		if err != nil {
			return
		}
		again, err := starts.Parse(p.Encode())
		if diff := cmp.Diff(p, again); err != nil || diff != "" {
			t.Errorf("%x becomes another profile: %v\n%s", b, err, diff)
		}
	})
}

// FuzzEvent parses what the kernel says about the file of an event.
func FuzzEvent(f *testing.F) {
	f.Add([]byte("\x02\x00\x20\x00fsfsfsfs\x04\x00\x00\x00\x01\x00\x00\x00hand" + "name\x00\x00\x00\x00"))
	f.Add([]byte("\x02\x00\x20\x00fsfsfsfs\xff\xff\xff\xff\x01\x00\x00\x00hand" + "name"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if dir, base, ok := starts.ParseEvent(b); ok && (len(dir)+len(base) > len(b) || strings.Contains(base, "\x00")) {
			t.Errorf("%x is read as %q in %x", b, base, dir)
		}
	})
}
