package policy

import (
	"math"
	"testing"
)

// TestMostPopular checks that an entry requested more than 2^31 times stays the most
// popular. A busy registry reaches that in a month.
func TestMostPopular(t *testing.T) {
	for _, name := range []string{"gdsf", "lfuda", "hyperbolic", "s3-fifo"} {
		p, err := New(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := NewCache(100, p, nil)
		hot, cold := NumberKey(1), NumberKey(2)
		c.Add(hot, 2, 1)
		c.index[hot].freq = math.MaxInt32
		c.Get(hot)
		if got := c.index[hot].freq; got != math.MaxInt32+1 {
			t.Errorf("%s: the count after 2^31 requests is %d", name, got)
		}
		c.Add(cold, 2, 1)
		for n := uint64(3); c.Has(cold) && n < 1000; n++ {
			c.Add(NumberKey(n), 2, 1)
			c.Get(NumberKey(n))
		}
		if !c.Has(hot) || c.Has(cold) {
			t.Errorf("%s: hot is held %v, cold %v", name, c.Has(hot), c.Has(cold))
		}
	}
}
