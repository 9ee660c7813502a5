package registry

import (
	"fmt"
	"io"

	"example.org/slipway/integration/bench/measure"
)

// target is a limit for a figure of speed or size that the project promises to keep.
type target struct {
	scenario string
	what     string
	// limit is the maximum of the figure. With atLeast it is the minimum.
	limit   float64
	atLeast bool
	// value returns the figure. ok is false if it was not measured.
	value func(r *Results) (v value, ok bool)
}

// value is a figure to check.
type value struct {
	figure float64
	spread measure.Spread
}

// ratio returns a function that divides a figure of one server by the same figure of
// another, in one case.
func ratio(scenario, cas string, m metric, server, other string) func(*Results) (value, bool) {
	return func(r *Results) (value, bool) {
		c, ok := m.compare(r.group(scenario, cas, server), r.group(scenario, cas, other))
		return value{c.ofMedians, c.rounds}, ok
	}
}

// growth returns a function that compares two cases of Slipway.
func growth(scenario, cas, base string, m metric) func(*Results) (value, bool) {
	return func(r *Results) (value, bool) {
		c, ok := m.compare(r.group(scenario, cas, nameSlipway), r.group(scenario, base, nameSlipway))
		return value{c.ofMedians, c.rounds}, ok
	}
}

// worst returns a function that finds Slipway's greatest figure in a case.
func worst(scenario, cas string, m metric) func(*Results) (value, bool) {
	return func(r *Results) (value, bool) {
		s := m.spread(r.group(scenario, cas, nameSlipway))
		return value{s.Max, s}, s.N > 0
	}
}

// targets returns all targets that are promised.
func targets(scale Scale) []target {
	list := []target{
		{scenario: "pull", what: "CPU of a pull, C=10, slipway / nginx", limit: 1.5,
			value: ratio("pull", caseClients(10), cpuMs, nameSlipway, nameNginx)},
		{scenario: "head", what: "CPU of a HEAD, slipway / nginx", limit: 3,
			value: ratio("head", caseClients(headClients), cpuMs, nameSlipway, nameNginx)},
		{scenario: "head", what: "CPU of a HEAD, 10000 tags / 10 tags", limit: 1.2,
			value: growth("head", caseTags(10000), caseTags(10), cpuMs)},
	}
	for _, size := range blobSizes {
		list = append(list, target{scenario: "blob", what: "CPU of GET, " + caseSize(size) + ", slipway / nginx", limit: 1.15,
			value: ratio("blob", caseSize(size), cpuPerGB, nameSlipway, nameNginx)})
	}
	list = append(list,
		target{scenario: "memory", what: "MB resident after serving", limit: 40, value: worst("memory", caseAfterServe, rssMB)},
		target{scenario: "push", what: "small pushes per second, C=4, slipway / " + nameZotCommit, limit: 3, atLeast: true,
			value: ratio("push", caseClients(4), perSecond, nameSlipway, nameZotCommit)})
	for _, cas := range []string{caseSize(128 << 20), caseChunked} {
		for _, other := range []string{nameZotCommit, nameZot} {
			list = append(list, target{scenario: "pushlarge", what: "push of " + cas + ", MB/s, slipway / " + other, limit: 1, atLeast: true,
				value: ratio("pushlarge", cas, mbPerSec, nameSlipway, other)})
		}
	}
	list = append(list, target{scenario: "start", what: "seconds to ready, files not cached", limit: 1, value: worst("start", caseStartCold, seconds)})
	for _, l := range []string{listTags, listRepositories} {
		for _, where := range listPlaces[1:] {
			list = append(list, target{scenario: "lists", what: "CPU of a page, " + l + ", " + where + " / beginning", limit: 1.5,
				value: growth("lists", caseList(l, where), caseList(l, listPlaces[0]), cpuMs)})
		}
	}
	small, big := caseStore(scale.StoreBlobs[0]), caseStore(scale.StoreBlobs[1])
	return append(list, target{scenario: "gc", what: "CPU of a collection, " + big + " / " + small, limit: 1.5,
		value: growth("gc", big, small, cpuMs)})
}

// check prints whether each target of the scenarios that ran is met, and reports whether none is
// missed. A target that could not be measured does not count as missed, but is printed.
func check(w io.Writer, r *Results) bool {
	good := true
	for _, t := range targets(r.Run.Scale) {
		if len(r.cases(t.scenario)) == 0 {
			continue
		}
		relation := "at most"
		if t.atLeast {
			relation = "at least"
		}
		v, ok := t.value(r)
		if !ok {
			fmt.Fprintf(w, "----  %-9s %s: not measured (%s %s)\n", t.scenario, t.what, relation, measure.Figure(t.limit))
			continue
		}
		verdict := "PASS"
		if v.figure > t.limit && !t.atLeast || v.figure < t.limit && t.atLeast {
			verdict, good = "FAIL", false
		}
		fmt.Fprintf(w, "%s  %-9s %s: %s (%s %s; rounds %s to %s)\n", verdict, t.scenario, t.what,
			measure.Figure(v.figure), relation, measure.Figure(t.limit), measure.Figure(v.spread.Min), measure.Figure(v.spread.Max))
	}
	return good
}
