package load

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Mix says how often each operation is done, by weights. The zero value means only pulls.
type Mix struct {
	weights [Pruning]float64
}

// ParseMix parses weights such as "pull=90,push=5,head=4,list=1". "" means only pulls.
func ParseMix(s string) (Mix, error) {
	var m Mix
	if s == "" {
		return m, nil
	}
	total := 0.0
	for part := range strings.SplitSeq(s, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(part), "=")
		w, err := strconv.ParseFloat(number, 64)
		op := Op(0)
		for op < Pruning && op.String() != name {
			op++
		}
		if op == Pruning || err != nil || !(w >= 0 && w <= 1e9) {
			return Mix{}, fmt.Errorf("mix %q: %q is not one of pull, push, head or list with a weight, as pull=90", s, part)
		}
		m.weights[op] += w
		total += w
	}
	if total == 0 {
		return Mix{}, fmt.Errorf("mix %q: nothing has a weight", s)
	}
	return m, nil
}

// PullsOnly reports whether the only operation is a pull.
func (m Mix) PullsOnly() bool {
	for op, w := range m.weights {
		if Op(op) != Pull && w > 0 {
			return false
		}
	}
	return true
}

// Has reports whether an operation is done at all.
func (m Mix) Has(o Op) bool {
	if m == (Mix{}) {
		return o == Pull
	}
	return o < Pruning && m.weights[o] > 0
}

// draw chooses an operation.
func (m *Mix) draw(rnd *rand.Rand) Op {
	if m.PullsOnly() {
		return Pull
	}
	total := 0.0
	for _, w := range m.weights {
		total += w
	}
	at := total * rnd.Float64()
	last := Pull
	for op, w := range m.weights {
		if w == 0 {
			continue
		}
		if last = Op(op); at < w {
			break
		}
		at -= w
	}
	return last
}
