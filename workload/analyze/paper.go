package analyze

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// reference is a published number: a value of a figure of a zone. It lies between low and
// high. The two are equal for a single number, and infinite on a side that is not given.
type reference struct {
	figure, zone, value string
	low, high           float64
	source              string
	// about says that the source gives no exact number.
	about bool
	// total says that the number is for the whole period, so a part of it cannot be
	// compared.
	total bool
	// minus names the zone whose value is subtracted first.
	minus string
}

// These are the sources of the numbers. The archive's totals were counted from the
// published traces by others (redulink-deduplex-quic, results of July 2026).
const (
	fromTable   = "FAST'18, Table 1"
	fromText    = "FAST'18, text"
	fromArchive = "published archive"
)

// paperZone returns FAST'18's short name of a zone, or "" for a zone that is not in the
// paper.
func paperZone(zone string) string {
	z := strings.TrimPrefix(zone, "prod-")
	switch z {
	case "dal", "dal09":
		return "dal"
	case "lon", "lon02":
		return "lon"
	case "fra", "fra02":
		return "fra"
	case "syd", "syd01":
		return "syd"
	case "stg", "stage-dal09":
		return "stg"
	case "prs", "prestage-mon01":
		return "prs"
	case "dev", "dev-mon01":
		return "dev"
	}
	return ""
}

// paperDays returns how many days of each zone the paper had.
func paperDays(zone string) int64 {
	switch zone {
	case "dal", "lon", "fra":
		return 75
	case "dev":
		return 55
	}
	return 65
}

// references returns all numbers of the paper and the archive that have a counterpart.
func references() []reference {
	return slices.Concat(tableReferences(), archiveReferences(), textReferences())
}

// tableReferences returns the numbers of Table 1.
func tableReferences() []reference {
	var out []reference
	table := func(zone string, days, requests, in, egress, pushed, pulled float64) {
		for _, v := range []struct {
			name string
			v    float64
		}{{"days", days}, {"requests", requests * 1e6}, {"ingress", in * 1e12}, {"egress", egress * 1e12}, {"images pushed", pushed * 1e3}, {"images pulled", pulled * 1e3}} {
			if zone == "fra" && v.name == "requests" {
				continue // 1.80 M against 3.87 M in the archive: the archive is right
			}
			out = append(out, reference{figure: "table1", zone: zone, value: v.name, low: v.v, high: v.v, source: fromTable, total: true})
		}
		share := pulled / (pulled + pushed)
		out = append(out, reference{figure: "4a", zone: zone, value: "pulls", low: share, high: share, source: fromTable})
	}
	table("dal", 75, 20.85, 5.50, 107.5, 356, 5000)
	table("lon", 75, 7.55, 1.70, 25.0, 331, 2200)
	table("fra", 75, 1.80, 0.40, 3.30, 90, 950)
	table("syd", 65, 1.03, 0.29, 1.87, 105, 360)
	table("stg", 65, 5.90, 2.41, 29.2, 327, 1560)
	table("prs", 65, 0.75, 0.23, 2.45, 65, 140)
	table("dev", 55, 0.34, 0.01, 1.44, 15, 70)
	return out
}

// archiveReferences returns the totals of the published traces.
func archiveReferences() []reference {
	var out []reference
	archive := func(zone string, requests, days, clients, layers float64) {
		for _, v := range []struct {
			name string
			v    float64
		}{{"requests", requests}, {"days", days}, {"clients", clients}, {"layer GETs with content", layers}} {
			out = append(out, reference{figure: "table1", zone: zone, value: v.name, low: v.v, high: v.v, source: fromArchive, total: true})
		}
	}
	archive("dal", 20_856_543, 73, 8157, 7_236_886)
	archive("lon", 7_592_009, 73, 1178, 1_747_872)
	archive("fra", 3_869_210, 73, 2182, 701_530)
	archive("syd", 1_056_787, 63, 1058, 211_521)
	archive("stg", 6_306_742, 70, 1980, 2_377_935)
	archive("prs", 809_856, 64, 18, 263_142)
	archive("dev", 380_877, 54, 29, 118_222)
	return out
}

// textReferences returns the numbers that the paper's text gives of its figures.
func textReferences() []reference {
	var out []reference
	inf := math.Inf(1)
	text := func(figure, zones, value string, low, high float64) *reference {
		for zone := range strings.FieldsSeq(zones) {
			out = append(out, reference{figure: figure, zone: zone, value: value, low: low, high: high, source: fromText})
		}
		return &out[len(out)-1]
	}
	const production, all = "dal lon fra syd", "dal lon fra syd stg prs dev"
	text("4a", "dal lon fra", "pulls", 0.90, 0.95)
	text("4a", "syd", "pulls", 0.78, 0.78)
	text("4a", "stg prs dev", "pulls", 0.68, 0.82)
	text("4b", all, "GET", 0.60, inf)
	text("4b", all, "HEAD", 0.10, 0.22)
	text("4b", all, "PUT per PATCH", 1.9, 5.8)
	text("5a", "dal lon stg prs dev", "layers", 0.5, inf)
	text("5a", "syd fra", "layers", -inf, 0.5)
	text("5b", all, "layers", 0.5, inf)
	text("6a", all, "below 1 MB", 0.65, 0.65)
	text("6a", all, "below 10 MB", 0.80, 0.80)
	text("6b", "dal fra syd stg prs dev", "median", 1e3, 1e3)
	text("6b", "lon", "above 10 kB", 0.5, 0.5)
	text("7", "dal", "minutes with at least 100", 0.8, inf)
	text("7", "dev", "minutes without any", 0.57, 0.57)
	text("8a", "dal", "more than 1 s", 0.6, inf)
	text("8a", "dal", "p75", 10, inf)
	text("8d", "lon", "median", 0.3, 0.4).minus = "dal"
	text("9", all, "slope below 1 MB", 0, 0)
	text("9", all, "slope above 1 MB", 1, 1)
	text("10a", "dal", "top 1 %", 0.42, 0.42)
	text("10a", "syd", "top 1 %", 0.59, 0.59)
	text("11a", all, "top 10", 0.08, 0.30)
	text("11a", "dal", "top 10", 0.12, 0.12)
	text("11a", "dal lon fra stg prs dev", "rank 1", 0.01, 0.10)
	text("11a", "syd", "rank 1", 0.19, 0.19)
	text("11b", "fra syd", "top 10", 0.40, 0.40)
	text("11b", "prs", "top 10", 0.60, 0.60)
	text("11c", "dal", "top 10", 0.25, 0.25)
	text("11d", production, "rank 1", 0.15, 0.15)
	text("11d", "prs dev", "top 2", 0.80, 0.80)
	text("12a", "fra", "no layer", 0.73, 0.73)
	text("12a", "dev", "no layer", 0.96, 0.96)
	text("12a", "dal lon syd stg prs", "no layer", 0.73, 0.96)
	text("13a", "dal", "median, mean per minute", 7, 7)
	text("13a", "dev", "median, mean per minute", 0.6, 0.6)
	text("13a", "lon fra syd stg prs", "median, mean per minute", 0.6, 7)
	text("15a", "dal lon stg", "p99", 3, 3)
	text("15a", "fra syd prs dev", "p99", 110, 110)
	text("15b", all, "below 1 s", 0.5, inf)
	text("15b", "dal", "idle periods", 1e5, 1e5).total = true
	text("15b", "lon", "idle periods", 1.5e6, inf).total = true
	for i := range out {
		switch r := &out[i]; r.figure {
		case "6b", "9", "11d", "15a", "15b":
			r.about = r.low == r.high
		}
	}
	return out
}

// Comparison is a published number beside ours.
type Comparison struct {
	Zone     string `json:"zone"`
	Quantity string `json:"quantity"`
	Unit     Unit   `json:"unit"`
	// Ours is nil if the trace lacks what it needs.
	Ours *float64 `json:"ours"`
	// Low and High are the published number, or its bounds. Each is nil if there is no
	// bound on its side.
	Low  *float64 `json:"low"`
	High *float64 `json:"high"`
	// About says that the source gives no exact number.
	About  bool   `json:"about,omitempty"`
	Source string `json:"source"`
	// Difference is ours less the published number or the nearer bound: in points for a
	// share, else relative. It is 0 within the bounds, and nil if Ours is nil.
	Difference *float64 `json:"difference"`
	// NotComparable says why the two numbers are not of the same thing. It is empty if
	// they are.
	NotComparable string `json:"notComparable,omitempty"`
}

// Published returns the numbers that were published of a figure. Zones have the paper's
// names, and Ours is nil. NotComparable is set for the numbers that only a trace of full
// length has.
func Published(figure string) []Comparison {
	var out []Comparison
	for _, ref := range references() {
		if ref.figure == figure {
			out = append(out, ref.compare(&ZoneResult{Zone: ref.zone}, nil, 0))
		}
	}
	return out
}

// PlotOf returns how a figure of the paper is drawn. Its zero value stands for a figure that is not
// among them.
func PlotOf(figure string) Plot {
	for _, p := range Builtin() {
		for _, f := range p.Figures {
			if f.ID == figure {
				return f.Plot
			}
		}
	}
	return Plot{}
}

// compare pairs the published numbers of a figure with the zones' numbers. days holds the
// number of days of each zone.
func compare(figure string, zones []ZoneResult, days map[string]int64) []Comparison {
	var out []Comparison
	refs := references()
	for i := range zones {
		z := &zones[i]
		for _, ref := range refs {
			if ref.figure == figure && ref.zone == paperZone(z.Zone) {
				out = append(out, ref.compare(z, zones, days[z.Zone]))
			}
		}
	}
	return out
}

func (ref *reference) compare(z *ZoneResult, zones []ZoneResult, days int64) Comparison {
	c := Comparison{Zone: z.Zone, Quantity: ref.value, Unit: ref.unit(), About: ref.about, Source: ref.source}
	if !math.IsInf(ref.low, 0) {
		c.Low = &ref.low
	}
	if !math.IsInf(ref.high, 0) {
		c.High = &ref.high
	}
	if want := paperDays(ref.zone); ref.total && days*10 < want*9 {
		c.NotComparable = fmt.Sprintf("%d of %d days", days, want)
	}
	ours, ok := z.Value(ref.value)
	if ref.minus != "" {
		c.Quantity += ", more than that of " + ref.minus
		own := ok
		ok = false
		for i := range zones {
			if v, has := zones[i].Value(ref.value); own && has && paperZone(zones[i].Zone) == ref.minus {
				ours, ok = ours-v, true
			}
		}
	}
	if !ok {
		return c
	}
	c.Ours = &ours
	nearest := min(max(ours, ref.low), ref.high)
	diff := ours - nearest
	if c.Unit != Share && nearest != 0 {
		diff /= math.Abs(nearest)
	}
	c.Difference = &diff
	return c
}

// unit returns the unit of the reference. The trace's own value has the same unit, but a trace
// may lack the value.
func (ref *reference) unit() Unit {
	switch ref.value {
	case "ingress", "egress":
		return Bytes
	case "days", "requests", "images pushed", "images pulled", "clients", "layer GETs with content", "PUT per PATCH",
		"slope below 1 MB", "slope above 1 MB", "median, mean per minute", "idle periods":
		return Number
	case "median", "p75", "p99":
		if ref.figure == "6b" {
			return Bytes
		}
		return Seconds
	}
	return Share
}
