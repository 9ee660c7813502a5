package store

import "example.org/slipway/workload/trace"

// Counts say what requests there were.
type Counts struct {
	Records  int64            `json:"records"`
	Kinds    map[string]int64 `json:"kinds"`
	Methods  map[string]int64 `json:"methods"`
	Statuses map[int]int64    `json:"statuses"`
	// Mix is how many requests there are of each method and kind, as "GET blob".
	Mix map[string]int64 `json:"mix"`
}

// Tally counts requests without any lookup.
type Tally struct {
	mix      [DELETE + 1][trace.Catalog + 1]int64
	statuses [1000]int64
}

// Add counts a request.
func (t *Tally) Add(m Method, k trace.Kind, status int) {
	t.mix[m][k]++
	if uint(status) < uint(len(t.statuses)) {
		t.statuses[status]++
	} else {
		t.statuses[0]++
	}
}

// Fill sets all counts except Records.
func (t *Tally) Fill(c *Counts) {
	*c = Counts{Records: c.Records, Kinds: map[string]int64{}, Methods: map[string]int64{}, Statuses: map[int]int64{}, Mix: map[string]int64{}}
	for m := range t.mix {
		for k, n := range t.mix[m] {
			if n > 0 {
				method, kind := Method(m).String(), trace.Kind(k).String()
				c.Kinds[kind] += n
				c.Methods[method] += n
				c.Mix[method+" "+kind] += n
			}
		}
	}
	for status, n := range t.statuses {
		if n > 0 {
			c.Statuses[status] = n
		}
	}
}
