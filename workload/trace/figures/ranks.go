package figures

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"example.org/slipway/workload/trace/store"
)

// ranked is a thing and how often it was requested.
type ranked struct {
	key      uint64
	requests int64
}

func (c counts) popularity(name func(uint64) string) Popularity {
	var all []ranked
	for sym, n := range c {
		if n > 0 {
			all = append(all, ranked{uint64(sym), n})
		}
	}
	return rank(all, name)
}

func popularity(requests map[uint64]int64, name func(uint64) string) Popularity {
	all := make([]ranked, 0, len(requests))
	for key, n := range requests {
		all = append(all, ranked{key, n})
	}
	return rank(all, name)
}

// rank sorts things by requests and describes how the requests are spread.
func rank(all []ranked, name func(uint64) string) Popularity {
	if len(all) == 0 {
		return Popularity{}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.requests, a.requests), cmp.Compare(a.key, b.key))
	})
	p := Popularity{Distinct: int64(len(all)), Top: name(all[0].key), TopRequests: all[0].requests}
	percent := max(1, len(all)/100)
	var top10, top1 int64
	for i, r := range all {
		p.Requests += r.requests
		if i < 10 {
			top10 += r.requests
		}
		if i < percent {
			top1 += r.requests
		}
	}
	once := len(all) - sort.Search(len(all), func(i int) bool { return all[i].requests <= 1 })
	p.Rank1, p.Top10, p.Top1 = ratio(p.TopRequests, p.Requests), ratio(top10, p.Requests), ratio(top1, p.Requests)
	p.Once = ratio(int64(once), p.Distinct)
	p.Slope = zipfSlope(all[:min(len(all), zipfRanks)])
	return p
}

// zipfSlope fits a line to log rank and log requests by least squares, and returns
// minus its slope; 0 for fewer than two things.
func zipfSlope(all []ranked) float64 {
	if len(all) < 2 {
		return 0
	}
	var sx, sy, sxx, sxy float64
	for i, r := range all {
		x, y := math.Log(float64(i+1)), math.Log(float64(r.requests))
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	n := float64(len(all))
	return -(n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// stackDistances returns, for each occurrence of a symbol that occurred before, how many
// different symbols have occurred since. That is the number of symbols before it in a
// list that is kept by recency. Symbols are below limit.
func stackDistances(sequence []store.Symbol, limit int) []int64 {
	// A Fenwick tree over positions counts the positions that are the last of their
	// symbol.
	tree := make([]int32, len(sequence)+1)
	add := func(i int, d int32) {
		for ; i < len(tree); i += i & -i {
			tree[i] += d
		}
	}
	sum := func(i int) (n int64) {
		for ; i > 0; i -= i & -i {
			n += int64(tree[i])
		}
		return n
	}
	last := make([]int32, limit)
	var out []int64
	for i, sym := range sequence {
		at := i + 1
		if before := int(last[sym]); before > 0 {
			out = append(out, sum(at-1)-sum(before))
			add(before, -1)
		}
		last[sym] = int32(at)
		add(at, 1)
	}
	return out
}

// quantiles sorts v.
func quantiles(v []int64) Quantiles {
	if len(v) == 0 {
		return Quantiles{}
	}
	slices.Sort(v)
	at := func(q float64) float64 {
		x := q * float64(len(v)-1)
		i := int(x)
		if i+1 >= len(v) {
			return float64(v[len(v)-1])
		}
		return float64(v[i]) + (x-float64(i))*float64(v[i+1]-v[i])
	}
	return Quantiles{int64(len(v)), at(0.5), at(0.75), at(0.9), at(0.99)}
}

// median sorts v and returns the upper median.
func median(v []int64) int64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
