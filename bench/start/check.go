package start

import (
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/integration/bench/measure"
)

// verdict collects whether targets are met.
type verdict struct {
	w   *strings.Builder
	met bool
}

func (v *verdict) target(what string, got, want float64, atLeast bool) {
	ok, sign := got <= want, "at most"
	if atLeast {
		ok, sign = got >= want, "at least"
	}
	word := "met   "
	if !ok {
		word, v.met = "MISSED", false
	}
	fmt.Fprintf(v.w, "%s  %s: %s, %s %s\n", word, what, measure.Figure(got), sign, measure.Figure(want))
}

func (v *verdict) none(what string, list []string) {
	if len(list) == 0 {
		fmt.Fprintf(v.w, "met     %s: never\n", what)
		return
	}
	v.met = false
	fmt.Fprintf(v.w, "MISSED  %s: %d times: %s\n", what, len(list), strings.Join(list, "; "))
}

func (v *verdict) open(what string) {
	v.met = false
	fmt.Fprintf(v.w, "OPEN    %s: not measured\n", what)
}

// leastSpeedUp returns how many times as fast as a plain pull a start must be on average,
// by the rate in Mbit/s. Gear's own speed-ups are 1.64, 2.61, 3.45 and 5.01.
func leastSpeedUp() map[int]float64 { return map[int]float64{1000: 3, 100: 8, 20: 12, 5: 15} }

// mostOverLimit is the largest permitted ratio of a start to the limit at 100 Mbit/s and below.
const mostOverLimit = 1.15

// check compares results with the targets, writes a line for each, and reports whether all are met.
func check(w *strings.Builder, r *Results) bool {
	v := &verdict{w: w, met: true}
	v.start(r.Start)
	v.bytes(r.Bytes)
	v.local(r.Local)
	v.touch(r.Touch)
	return v.met
}

func (v *verdict) start(st *Start) {
	if st == nil || !slices.Contains(st.systems(), slipwayName) {
		v.open("starts with slipway")
		return
	}
	var overLimit, overPlain, overStargz, failed []string
	for _, s := range st.Samples {
		if s.Failure != "" {
			failed = append(failed, measure.FirstLine(s.String()))
		}
	}
	for _, s := range st.summaries() {
		if want, ok := leastSpeedUp()[s.mbit]; ok && s.task == firstTask && s.ratio[plainName] > 0 {
			v.target(fmt.Sprintf("mean speed-up over the plain pull at %s", s.link), s.ratio[plainName], want, true)
		}
		for _, im := range s.slower[plainName] {
			overPlain = append(overPlain, im+" at "+s.link.String())
		}
		for _, im := range s.slower[stargzName] {
			overStargz = append(overStargz, im+" at "+s.link.String())
		}
	}
	for _, c := range st.cells() {
		own, _ := st.spread(c, slipwayName, Sample.TotalSec)
		if limit := st.limit(c); c.Mbit <= 100 && limit > 0 && own.N > 0 && own.Median > mostOverLimit*limit {
			overLimit = append(overLimit, fmt.Sprintf("%s at %s, %s task: %.2f", c.Image, link{c.Mbit, c.RTTms}, c.Task, own.Median/limit))
		}
	}
	v.none("slower than the plain pull", overPlain)
	if slices.Contains(st.systems(), stargzName) {
		v.none("not faster than stargz", overStargz)
	} else {
		v.open("comparison with stargz")
	}
	v.none(fmt.Sprintf("over %.2f times the limit at 100 Mbit/s and below", mostOverLimit), overLimit)
	v.newVersions(st)
	v.none("a start that failed", failed)
}

// mostOverOwn returns how long the first start of a new version may take on average, and how long
// each of them, as multiples of a start with a profile of its own, by the rate in Mbit/s.
func mostOverOwn() map[int][2]float64 { return map[int][2]float64{100: {1.15, 1.25}, 20: {1.05, 1.1}} }

// newVersions checks starts of images of which the registry knows only earlier versions.
func (v *verdict) newVersions(st *Start) {
	var each, overStargz []string
	any := false
	for _, s := range st.summaries() {
		most, ok := mostOverOwn()[s.mbit]
		if mean := s.ratio[newName]; ok && mean > 0 {
			any = true
			v.target(fmt.Sprintf("new versions at %s, %s task, times a start with their own profiles", s.link, s.task), mean, most[0], false)
		}
	}
	for _, c := range st.cells() {
		is, _ := st.spread(c, newName, Sample.TotalSec)
		own, _ := st.spread(c, slipwayName, Sample.TotalSec)
		rival, _ := st.spread(c, stargzName, Sample.TotalSec)
		at := fmt.Sprintf("%s at %s, %s task", c.Image, link{c.Mbit, c.RTTms}, c.Task)
		if most, ok := mostOverOwn()[c.Mbit]; ok && is.N > 0 && own.N > 0 && is.Median > most[1]*own.Median {
			each = append(each, fmt.Sprintf("%s: %.2f", at, is.Median/own.Median))
		}
		if is.N > 0 && rival.N > 0 && is.Median >= rival.Median {
			overStargz = append(overStargz, at)
		}
	}
	if any {
		v.none("a new version over 1.25 times its start with an own profile at 100 Mbit/s, 1.1 at 20", each)
		if slices.Contains(st.systems(), stargzName) {
			v.none("a new version not faster than stargz with its optimised image", overStargz)
		} else {
			v.open("comparison of new versions with stargz")
		}
	}
}
