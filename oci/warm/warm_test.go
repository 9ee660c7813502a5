package warm_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.org/slipway/oci/warm"
)

func TestSelector(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"zone": "eu-1a", "gpu": "", "example.com/pool": "a/b"}
	for s, want := range map[string]bool{
		"": true, " ": true, "zone=eu-1a": true, "zone==eu-1a": true, "zone=eu-1b": false, "zone!=eu-1b": true, "zone!=eu-1a": false,
		"gpu": true, "!gpu": false, "arm": false, "!arm": true, "arm=1": false, "arm!=1": true, "zone=eu-*": true, "zone=eu-??": true, "zone=eu-?": false,
		"name=n7": true, "name=n*": true, "name!=n7": false, "!name": false, "zone=eu-1a, gpu": true, "zone=eu-1a,!gpu": false,
		"example.com/pool=a/b": true, "example.com/pool=a*": true, "gpu=": true,
	} {
		sel, err := warm.ParseSelector(s)
		if err != nil || sel.Selects("n7", labels) != want {
			t.Errorf("%q: error %v, want it to select: %v", s, err, want)
		}
	}
	for _, s := range []string{",", "a,,b", "=a", "!", "!=a", "a b=c", "a=[", "ä=1", "a=\x01", strings.Repeat("a", 5000), "a=" + strings.Repeat("b", 300)} {
		if _, err := warm.ParseSelector(s); err == nil {
			t.Errorf("%.40q is a selector", s)
		}
	}
}

// TestSelectorNegation checks on random labels that a condition selects exactly the nodes that
// its negation does not, and that conditions together select what each of them does.
func TestSelectorNegation(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	condition := func() (s, not string) {
		k := pick("a", "b", "name")
		if v := pick("", "x", "y", "x*", "?"); rng.IntN(2) == 0 {
			return k + "=" + v, k + "!=" + v
		}
		return k, "!" + k
	}
	selects := func(s, node string, labels map[string]string) bool {
		sel, err := warm.ParseSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return sel.Selects(node, labels)
	}
	for range 5000 {
		labels := map[string]string{}
		for _, k := range []string{"a", "b"} {
			if rng.IntN(2) == 0 {
				labels[k] = pick("", "x", "y", "xy")
			}
		}
		node := pick("x", "y", "z")
		c1, n1 := condition()
		c2, _ := condition()
		one, two := selects(c1, node, labels), selects(c2, node, labels)
		if selects(n1, node, labels) == one {
			t.Fatalf("node %s %v: %q and %q select the same", node, labels, c1, n1)
		}
		if selects(c1+","+c2, node, labels) != (one && two) {
			t.Fatalf("node %s %v: %q selects %v, %q %v, and both together do not agree", node, labels, c1, one, c2, two)
		}
	}
}

func TestPollCheck(t *testing.T) {
	t.Parallel()
	ok := warm.Poll{Node: "n", Labels: map[string]string{"zone": "a"}, Tasks: map[string]warm.Progress{"x": {State: warm.Running}}}
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
	many := map[string]string{}
	for i := range 100 {
		many[fmt.Sprint("l", i)] = ""
	}
	for what, p := range map[string]warm.Poll{
		"no name":        {},
		"long name":      {Node: strings.Repeat("n", 300)},
		"control":        {Node: "a\nb"},
		"label name":     {Node: "n", Labels: map[string]string{"a b": "c"}},
		"label comma":    {Node: "n", Labels: map[string]string{"a": "b,c"}},
		"own name":       {Node: "n", Labels: map[string]string{"name": "other"}},
		"many labels":    {Node: "n", Labels: many},
		"state":          {Node: "n", Tasks: map[string]warm.Progress{"x": {State: "cancelled"}}},
		"negative bytes": {Node: "n", Tasks: map[string]warm.Progress{"x": {State: warm.Done, Bytes: -1}}},
		"reason":         {Node: "n", Tasks: map[string]warm.Progress{"x": {State: warm.Failed, Reason: strings.Repeat("r", 1000)}}},
	} {
		if p.Check() == nil {
			t.Errorf("%s: it passes", what)
		}
	}
}

// TestReason checks that any error fits into a report.
func TestReason(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"plain", strings.Repeat("ä", 600), "a\xffb\nc\x00", strings.Repeat("x", 499) + "äää"} {
		r := warm.Reason(errors.New(s))
		p := warm.Poll{Node: "n", Tasks: map[string]warm.Progress{"x": {State: warm.Failed, Reason: r}}}
		if err := p.Check(); err != nil || !utf8.ValidString(r) || slices.Contains([]byte(r), 0) {
			t.Errorf("%.20q becomes %.20q: %v", s, r, err)
		}
	}
}
