package load

import "testing"

func TestMix(t *testing.T) {
	type weights = [Pruning]float64
	for text, want := range map[string]weights{"": {}, "pull=90,push=5,head=4,list=1": {Pull: 90, Push: 5, Head: 4, List: 1}, "head=2,head=3": {Head: 5}, " pull=1 , list=0": {Pull: 1}} {
		m, err := ParseMix(text)
		if err != nil || m.weights != want {
			t.Errorf("%q: got %v and %v, want %v", text, m.weights, err, want)
		}
	}
	for _, text := range []string{"pull", "pull=x", "pull=-1", "prune=1", "pull=0", "pull=NaN", ","} {
		if m, err := ParseMix(text); err == nil {
			t.Errorf("%q was taken as %v", text, m.weights)
		}
	}
}
