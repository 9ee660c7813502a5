package reproduce

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/start"
	"example.org/slipway/internal/chart"
)

const (
	gearPaper = "Gear"
	gearSet   = "The images are real packages of Debian and real applications in nine series, not those of Docker Hub. "
	gearText  = "the paper's text"
)

// gearEntries returns the entries of Fan et al.
func gearEntries() []Entry {
	return []Entry{gearTableI(), gearTableII(), gearFigure6(), gearFigure7(), gearFigure8(), gearFigure9(), gearFigure10(), gearFigure11a(), gearFigure11b()}
}

// categories returns the categories of the paper, with what files save against layers.
func categories() []struct {
	name   string
	saving float64
} {
	return []struct {
		name   string
		saving float64
	}{{"Web Component", 0.609}, {"Application Platform", 0.586}, {"Database", 0.522}, {"Others", 0.467}, {"Language", 0.328}, {"Linux Distro", 0.205}}
}

// gearTableI returns the entry for the images.
func gearTableI() Entry {
	return Entry{Paper: gearPaper, Name: "Table I", Title: "the images", Part: "gear-storage", Source: gearText,
		Did:     "50 series of Docker Hub in six categories, the newest 20 versions each: 971 images, of which layers take 98 GB.",
		Differs: gearSet + "Fewer versions share less.",
		Claims: []Claim{
			exactly("images", chart.Number, 971, More), exactly("categories", chart.Number, 6, More),
			exactly("layers", chart.Bytes, 98e9, More),
		},
		Read: func(r *Raw) *Finding {
			s := r.Gear.Storage
			if s == nil {
				return nil
			}
			n := 0
			for _, set := range s.Sets {
				if set.Series == "" {
					n++
				}
			}
			return &Finding{Run: &s.Run.Run, Values: map[string]measure.Spread{"images": one(float64(s.Images)), "categories": one(float64(n)), "layers": one(float64(s.Bytes))}}
		}}
}

// gearTableII compares ways to deduplicate.
func gearTableII() Entry {
	return Entry{Paper: gearPaper, Name: "Table II", Title: "storage by what is deduplicated", Part: "gear-storage", Source: gearText,
		Did: "971 images without deduplication (370 GB, 971 objects), by layer (98 GB, 5,670), by file (47 GB, 639,585) and by chunk of 128 KB (43 GB, " +
			"10,478,675). Indexes are 1.1 % of the data.",
		Differs: gearSet + "Slipway keeps files in packs, so the number of objects is that of the packs. It does not count without deduplication and by chunk: " +
			"`slipway dedup` prints both for any images.",
		Claims: []Claim{
			exactly("saved by files against layers", chart.Share, 0.537, More),
			exactly("indexes, share of the Gear data", chart.Share, 0.011, Less),
			exactly("index of an image", chart.Bytes, 0.53e6, Less),
			exactly("objects / layers' objects", chart.Number, 639585.0/5670, Less),
		},
		Read: func(r *Raw) *Finding {
			s := r.Gear.Storage
			if s == nil || s.Bytes == 0 || s.Dense.Bytes == 0 || s.Images == 0 || s.Layers == 0 {
				return nil
			}
			return &Finding{Run: &s.Run.Run, Values: map[string]measure.Spread{
				"saved by files against layers":   one(1 - float64(s.Dense.Bytes)/float64(s.Bytes)),
				"indexes, share of the Gear data": one(float64(s.Dense.IndexBytes) / float64(s.Dense.Bytes)),
				"index of an image":               one(float64(s.Dense.IndexBytes) / float64(s.Images)),
				"objects / layers' objects":       one(float64(s.Dense.Packs) / float64(s.Layers)),
			}}
		}}
}

// gearFigure6 returns the entry for the time of conversion.
func gearFigure6() Entry {
	return Entry{Paper: gearPaper, Name: "Figure 6", Title: "conversion by size of the image", Part: "gear-convert", Source: gearText + "; only the mean and one series on an SSD are known",
		Did:     "Each series was converted beside the registry, on a hard disk: 46 s on average, in proportion to the size. The series node took 105 s, and 36 s on an SSD.",
		Differs: gearSet + "The clock runs from the begin of the push until all indexes are there, on a virtual disk. \"In proportion\" is taken as a correlation of at least 0.8.",
		Claims: []Claim{
			exactly("mean of the images", chart.Seconds, 46, Less),
			atLeast("correlation of seconds and bytes", chart.Number, 0.8, Like),
		},
		X: chart.Axis{Title: "size of the image, compressed", Unit: chart.Bytes}, Y: chart.Axis{Title: "push and conversion", Unit: chart.Seconds},
		Read: func(r *Raw) *Finding {
			c := r.Gear.Convert
			if c == nil || len(c.Images) == 0 {
				return nil
			}
			var seconds, bytes []float64
			curve := Curve{Name: "here", Single: true}
			for _, im := range c.Images {
				sec := measure.SpreadOf(im.Seconds).Median
				seconds, bytes = append(seconds, sec), append(bytes, float64(im.Bytes))
				curve.Points = append(curve.Points, chart.Point{X: float64(im.Bytes), Y: sec})
			}
			out := &Finding{Run: &c.Run.Run, Curves: []Curve{curve}, Values: map[string]measure.Spread{"mean of the images": one(mean(seconds))}}
			if len(seconds) > 2 {
				out.Values["correlation of seconds and bytes"] = one(correlation(bytes, seconds))
			}
			return out
		}}
}

// gearFigure7 returns the entry for the saving by category.
func gearFigure7() Entry {
	e := Entry{Paper: gearPaper, Name: "Figure 7", Title: "storage saved, by category", Part: "gear-storage", Source: gearText,
		Did: "What files save against layers, each series by itself.", Differs: gearSet + "Categories have one to three series of 4 to 20 versions."}
	for _, c := range categories() {
		e.Claims = append(e.Claims, exactly(c.name, chart.Share, c.saving, More))
	}
	e.Read = func(r *Raw) *Finding {
		s := r.Gear.Storage
		if s == nil {
			return nil
		}
		out := &Finding{Run: &s.Run.Run, Values: map[string]measure.Spread{}}
		for _, set := range s.Sets {
			if set.Series == "" && set.Layers > 0 && set.Dense > 0 {
				out.Values[set.Category] = one(1 - float64(set.Dense)/float64(set.Layers))
			}
		}
		return out
	}
	return e
}

// gearFigure8 returns the entry for what a deployment moves.
func gearFigure8() Entry {
	return Entry{Paper: gearPaper, Name: "Figure 8", Title: "bytes moved by a deployment", Part: "gear-bytes", Source: gearText,
		Did:     "Bytes that a deployment moves, as a share of Docker's: with an empty cache, and with what earlier versions of the series left.",
		Differs: gearSet + "Bytes on the link with all headers, means of the series' shares.",
		Claims: []Claim{
			exactly("empty cache, share of a plain pull", chart.Share, 0.291, Less),
			exactly("with a cache, share of a plain pull", chart.Share, 0.162, Less),
		},
		Read: func(r *Raw) *Finding {
			b := r.Start.Bytes
			if b == nil || len(b.Versions) == 0 {
				return nil
			}
			series := map[string][3]float64{}
			for _, v := range b.Versions {
				s := series[v.Series]
				series[v.Series] = [3]float64{s[0] + float64(v.Plain), s[1] + float64(v.Empty), s[2] + float64(v.Warm)}
			}
			var empty, warm []float64
			for _, s := range series {
				empty, warm = append(empty, s[1]/s[0]), append(warm, s[2]/s[0])
			}
			return &Finding{Run: &b.Run.Run, Values: map[string]measure.Spread{
				"empty cache, share of a plain pull": one(mean(empty)), "with a cache, share of a plain pull": one(mean(warm))}}
		}}
}

// rate is a link of the paper, with the speed-up over Docker without and with the cache.
type rate struct {
	published, here int // Mbit/s
	cold, warm      float64
}

func rates() []rate {
	return []rate{{904, 1000, 1.40, 1.64}, {100, 100, 1.92, 2.61}, {20, 20, 2.23, 3.45}, {5, 5, 2.95, 5.01}}
}

// gearFigure9 returns the entry for the speed-up of a deployment.
func gearFigure9() Entry {
	e := Entry{Paper: gearPaper, Name: "Figure 9", Title: "speed-up of a deployment by the link", Part: "gear-start", Source: gearText,
		Did: "The time of a deployment until its task is done, of all images, over links of 904, 100, 20 and 5 Mbit/s. G' has an empty cache, and G what earlier " +
			"versions left.",
		Differs: gearSet + "The fastest link has 1000 Mbit/s. The mean speed-up is that of the images' ratios. A plain pull whose bytes alone would take longer than 30 s is computed from bytes and rate. " +
			"G is that of the part gear-sequence, whose plain pull keeps the layers of earlier versions. Versions of this set share most of their layers, and " +
			"those of the paper hardly any: its 20 versions of Tomcat took 2.7 times as long at a tenth of the rate. So the same starts stand beside a plain " +
			"pull of the last version onto an empty node, too.",
		X: chart.Axis{Title: "rate of the link, Mbit/s", Log: true}, Y: chart.Axis{Title: "speed-up over a plain pull"},
	}
	cold, warm := Curve{Name: "G', published"}, Curve{Name: "G, published"}
	for _, l := range slices.Backward(rates()) {
		cold.Points = append(cold.Points, chart.Point{X: float64(l.here), Y: l.cold})
		warm.Points = append(warm.Points, chart.Point{X: float64(l.here), Y: l.warm})
	}
	for _, l := range rates() {
		e.Claims = append(e.Claims, exactly(coldAt(l.here), chart.Number, l.cold, More), exactly(warmAt(l.here), chart.Number, l.warm, More),
			exactly(wholeAt(l.here), chart.Number, l.warm, More))
	}
	e.Curves = []Curve{cold, warm}
	e.Read = func(r *Raw) *Finding {
		if r.Start.Start == nil && r.Start.Sequence == nil {
			return nil
		}
		out := &Finding{Values: map[string]measure.Spread{}}
		add := func(run *measure.Run, name string, at func(int) string, speedup func(mbit int) float64) {
			out.Run = run
			c := Curve{Name: name}
			for _, l := range slices.Backward(rates()) {
				if v := speedup(l.here); v > 0 {
					out.Values[at(l.here)] = one(v)
					c.Points = append(c.Points, chart.Point{X: float64(l.here), Y: v})
				}
			}
			if len(c.Points) > 0 {
				out.Curves = append(out.Curves, c)
			}
		}
		if s := r.Start.Sequence; s != nil {
			add(&s.Run.Run, "G, here", warmAt, func(mbit int) float64 { return sequenceSpeedup(s, mbit) })
			if cold := r.Start.Start; cold != nil {
				add(&s.Run.Run, "G, here, plain pull onto an empty node", wholeAt, func(mbit int) float64 { return wholeSpeedup(s, cold, mbit) })
			}
		}
		if s := r.Start.Start; s != nil {
			add(&s.Run.Run, "G', here", coldAt, func(mbit int) float64 { return coldSpeedup(s, mbit) })
		}
		return out
	}
	return e
}

func coldAt(mbit int) string { return fmt.Sprintf("G' (empty cache), %d Mbit/s", mbit) }
func warmAt(mbit int) string { return fmt.Sprintf("G (with a cache), %d Mbit/s", mbit) }
func wholeAt(mbit int) string {
	return fmt.Sprintf("G (with a cache), plain pull onto an empty node, %d Mbit/s", mbit)
}

// coldTimes returns the seconds of first starts on empty nodes, without an added round trip, by
// image and system.
func coldTimes(s *start.Start, mbit int) map[string]map[string][]float64 {
	times := map[string]map[string][]float64{}
	for _, x := range s.Samples {
		if x.Failure != "" || x.Mbit != mbit || x.RTTms != 0 || x.Task != "first" {
			continue
		}
		if times[x.Image] == nil {
			times[x.Image] = map[string][]float64{}
		}
		times[x.Image][x.System] = append(times[x.Image][x.System], x.TotalSec())
	}
	return times
}

// coldSpeedup returns the mean speed-up over the images: the plain pull's time divided by
// Slipway's time. Both start from nothing, without an added round trip. coldSpeedup
// returns 0 if nothing was measured.
func coldSpeedup(s *start.Start, mbit int) float64 {
	var ratios []float64
	for _, t := range coldTimes(s, mbit) {
		plain, own := measure.SpreadOf(t["plain"]), measure.SpreadOf(t["slipway"])
		if plain.N > 0 && own.N > 0 && own.Median > 0 {
			ratios = append(ratios, plain.Median/own.Median)
		}
	}
	return mean(ratios)
}

// sequenceSpeedup is like coldSpeedup, for versions in sequence: each starts with what
// earlier versions left on the node. The first version has nothing and does not count.
func sequenceSpeedup(s *start.Sequence, mbit int) float64 {
	var ratios []float64
	for _, v := range s.Versions {
		if v.Mbit == mbit && v.Place > 0 && v.Plain > 0 && v.Slipway > 0 {
			ratios = append(ratios, v.Plain/v.Slipway)
		}
	}
	return mean(ratios)
}

// wholeSpeedup is like sequenceSpeedup, but the plain pull is that of an image of the series onto
// an empty node. Each series counts once.
func wholeSpeedup(s *start.Sequence, cold *start.Start, mbit int) float64 {
	warm := map[string][]float64{}
	for _, v := range s.Versions {
		if v.Mbit == mbit && v.Place > 0 && v.Slipway > 0 {
			warm[v.Series] = append(warm[v.Series], v.Slipway)
		}
	}
	var ratios []float64
	for image, t := range coldTimes(cold, mbit) {
		series, _, _ := strings.Cut(image, "/")
		if plain := measure.SpreadOf(t["plain"]); plain.N > 0 && len(warm[series]) > 0 {
			ratios = append(ratios, plain.Median/mean(warm[series]))
		}
	}
	return mean(ratios)
}

// gearFigure10 returns the entry for a series in sequence.
func gearFigure10() Entry {
	const of = "tomcat, mean of the versions, "
	e := Entry{Paper: gearPaper, Name: "Figure 10", Title: "20 versions of Tomcat in sequence", Part: "gear-sequence", Source: gearText + ": means; the time of each version is not in it",
		Did: "20 versions of Tomcat were deployed one after the other, at 1000 and at 100 Mbit/s. At 1000: Docker 6.08 s, Slacker 3.03 s, Gear 3.04 s on " +
			"average. At 100 the times grow 2.7, 2.6 and 1.2 times.",
		Differs: gearSet + "Slacker is not public, so only its published mean is shown. The plain pull keeps the layers of earlier versions, as Docker does.",
		Claims: []Claim{
			exactly(of+"1000 Mbit/s", chart.Seconds, 3.04, Less),
			exactly(of+"100 / 1000 Mbit/s", chart.Number, 1.2, Less),
			exactly(of+"speed-up over the plain pull, 1000 Mbit/s", chart.Number, 2.0, More),
		},
		X: chart.Axis{Title: "version"}, Y: chart.Axis{Title: "deployment at 1000 Mbit/s", Unit: chart.Seconds},
	}
	for _, c := range []struct {
		name string
		sec  float64
	}{{"Docker, published mean", 6.08}, {"Slacker, published mean", 3.03}, {"Gear, published mean", 3.04}} {
		e.Curves = append(e.Curves, Curve{Name: c.name, Points: []chart.Point{{X: 1, Y: c.sec}, {X: 20, Y: c.sec}}})
	}
	e.Read = func(r *Raw) *Finding {
		s := r.Start.Sequence
		if s == nil {
			return nil
		}
		var own, plain, slow []float64
		ours, docker := Curve{Name: "Slipway, here"}, Curve{Name: "plain pull, here"}
		for _, v := range s.Versions {
			switch {
			case v.Series != "tomcat" || v.Plain == 0 || v.Slipway == 0:
			case v.Mbit == 1000:
				own, plain = append(own, v.Slipway), append(plain, v.Plain)
				ours.Points = append(ours.Points, chart.Point{X: float64(v.Place + 1), Y: v.Slipway})
				docker.Points = append(docker.Points, chart.Point{X: float64(v.Place + 1), Y: v.Plain})
			case v.Mbit == 100:
				slow = append(slow, v.Slipway)
			}
		}
		if len(own) == 0 {
			return nil
		}
		out := &Finding{Run: &s.Run.Run, Curves: []Curve{ours, docker}, Values: map[string]measure.Spread{
			of + "1000 Mbit/s": one(mean(own)), of + "speed-up over the plain pull, 1000 Mbit/s": one(mean(plain) / mean(own))}}
		if len(slow) > 0 {
			out.Values[of+"100 / 1000 Mbit/s"] = one(mean(slow) / mean(own))
		}
		return out
	}
	return e
}

// gearFigure11a returns the entry for the throughput of services.
func gearFigure11a() Entry {
	e := Entry{Paper: gearPaper, Name: "Figure 11a", Title: "throughput of long-running services", Part: "gear-local", Source: gearText + ": \"the same as Docker\", taken as a ratio of 1",
		Did:     "Redis and Memcached under memtier (SET to GET 1 to 10), nginx and httpd under ab, beside Docker.",
		Differs: gearSet + "redis-benchmark and memcaslap take the place of memtier. There is no image of httpd."}
	for _, s := range []string{"redis", "memcached", "nginx", "httpd"} {
		e.Claims = append(e.Claims, Claim{Name: s + ", Slipway / overlayfs", Low: 1, High: 1, Sense: More})
	}
	e.Read = func(r *Raw) *Finding {
		l := r.Start.Local
		if l == nil {
			return nil
		}
		out := &Finding{Run: &l.Run.Run, Values: map[string]measure.Spread{}}
		for _, t := range l.Tests {
			service, _, _ := strings.Cut(t.Name, ",")
			plain, other := measure.SpreadOf(t.Plain), measure.SpreadOf(t.Other)
			if t.PerSec && plain.N > 0 && other.N > 0 && plain.Median > 0 {
				out.Values[service+", Slipway / overlayfs"] = one(other.Median / plain.Median)
			}
		}
		return out
	}
	return e
}

// gearFigure11b returns the entry for cycles of containers.
func gearFigure11b() Entry {
	return Entry{Paper: gearPaper, Name: "Figure 11b", Title: "100 cycles of launch, request and destroy", Part: "gear-cycles", Source: gearText + ": \"slightly faster, mainly the unmount\"",
		Did:     "100 times: start a container of httpd, send it one request, destroy it; beside Docker.",
		Differs: gearSet + "nginx takes the place of httpd.",
		Claims:  []Claim{Claim{Name: "time of a cycle, Slipway / overlayfs", Low: 0.9, High: 1, Sense: Less}},
		Read: func(r *Raw) *Finding {
			c := r.Start.Cycles
			if c == nil || len(c.Plain) == 0 || len(c.Slipway) == 0 {
				return nil
			}
			return &Finding{Run: &c.Run.Run, Values: map[string]measure.Spread{
				"time of a cycle, Slipway / overlayfs": one(measure.SpreadOf(c.Slipway).Median / measure.SpreadOf(c.Plain).Median)}}
		}}
}

// mean returns the mean of some numbers, or 0 without any.
func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// correlation returns Pearson's coefficient.
func correlation(x, y []float64) float64 {
	mx, my := mean(x), mean(y)
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}
