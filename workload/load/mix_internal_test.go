package load_test

import (
	"testing"

	"example.org/slipway/workload/load"
)

func TestMix(t *testing.T) {
	for text, want := range map[string]string{"": "pull=1", "pull=90,push=5,head=4,list=1": "pull=90,push=5,head=4,list=1", "head=2,head=3": "head=5", " pull=1 , list=0": "pull=1"} {
		m, err := load.ParseMix(text)
		if err != nil || m.String() != want {
			t.Errorf("%q: got %q and %v, want %q", text, m, err, want)
		}
	}
	for _, text := range []string{"pull", "pull=x", "pull=-1", "prune=1", "pull=0", "pull=NaN", ","} {
		if m, err := load.ParseMix(text); err == nil {
			t.Errorf("%q was taken as %q", text, m)
		}
	}
}
