package start

import (
	"fmt"
	"slices"
	"strings"

	"example.org/slipway/integration/bench/measure"
)

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-start:begin (scripts/bench-start.sh writes what is between the two marks) -->",
		End:   "<!-- bench-start:end -->",
	}
}

// report returns the results as the Markdown of the document.
func report(r *Results, verdict string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "### Targets\n\n```text\n%s```\n", verdict)
	if r.Start != nil {
		head(&w, "Starts", &r.Start.Run)
		r.Start.write(&w)
	}
	if r.Bytes != nil {
		head(&w, "Bytes", &r.Bytes.Run)
		r.Bytes.write(&w)
	}
	if r.Local != nil {
		head(&w, "Local speed", &r.Local.Run)
		r.Local.write(&w)
	}
	if r.Sequence != nil {
		head(&w, "Versions in sequence", &r.Sequence.Run)
		r.Sequence.write(&w)
	}
	if r.Cycles != nil {
		head(&w, "Cycles of a container", &r.Cycles.Run)
		r.Cycles.write(&w)
	}
	if r.Touch != nil {
		head(&w, "Portions of an image", &r.Touch.Run)
		r.Touch.write(&w)
	}
	return w.String()
}

func head(w *strings.Builder, title string, run *Run) {
	fmt.Fprintf(w, "\n### %s\n\n%s\n", title, run.Head())
	for _, l := range run.Links {
		fmt.Fprintf(w, "- Link of %s\n", l)
	}
	w.WriteString("\n")
}

// write writes the tables of the starts.
func (st *Start) write(w *strings.Builder) {
	for _, p := range st.pictures() {
		fmt.Fprintf(w, "![%s](img/%s)\n\n", p.Chart.Title, p.File)
	}
	st.writeSummary(w)
	st.writeNeeds(w)
	st.writeCells(w)
	st.writeDetails(w)
	var failed [][]string
	for _, s := range st.Samples {
		if s.Failure != "" {
			failed = append(failed, []string{s.Image, s.Task, link{s.Mbit, s.RTTms}.String(), s.System, measure.FirstLine(s.Failure)})
		}
	}
	if len(failed) > 0 {
		w.WriteString("\nStarts that failed:\n\n")
		measure.Table(w, 5, []string{"image", "task", "link", "system", "failure"}, failed)
	}
}

// summary summarises the results of one link and task.
type summary struct {
	task string
	link
	cells int
	// seconds holds the mean seconds by system, and ratio the mean of the cells' ratios to
	// Slipway's.
	seconds, ratio    map[string]float64
	slower            map[string][]string // the images for which Slipway is not faster
	overLimit, worst  float64             // mean and largest ratio to the limit
	possible          float64             // mean speed-up over the plain pull that the limit would give
	worstImage        string
	computed, missing int
}

// subject returns the system with which the others are compared. It is Slipway or, if
// Slipway did not take part, the rival, so that a run of the rival alone still has a
// result.
func (st *Start) subject() string {
	for _, name := range []string{slipwayName, stargzName, plainName} {
		if slices.ContainsFunc(st.Samples, func(s Sample) bool { return s.System == name && s.Failure == "" }) {
			return name
		}
	}
	return plainName
}

// summaries compares the systems over each link and task.
func (st *Start) summaries() []summary {
	var out []summary
	subject := st.subject()
	for _, c := range st.cells() {
		l := link{c.Mbit, c.RTTms}
		i := slices.IndexFunc(out, func(s summary) bool { return s.task == c.Task && s.link == l })
		if i < 0 {
			i = len(out)
			out = append(out, summary{task: c.Task, link: l, seconds: map[string]float64{}, ratio: map[string]float64{}, slower: map[string][]string{}})
		}
		out[i].add(st, c, subject)
	}
	for i := range out {
		s := &out[i]
		for name := range s.seconds {
			s.seconds[name] /= float64(s.cells)
			s.ratio[name] /= float64(s.cells)
		}
		if s.cells > 0 {
			s.overLimit /= float64(s.cells)
			s.possible /= float64(s.cells)
		}
	}
	return out
}

// add adds a cell that all systems have finished. It counts other cells as missing.
func (s *summary) add(st *Start, c Cell, subject string) {
	own, _ := st.spread(c, subject, Sample.TotalSec)
	spreads := map[string]measure.Spread{}
	anyComputed := false
	for _, name := range allSystems() {
		if !slices.ContainsFunc(st.Samples, func(x Sample) bool { return x.System == name }) {
			continue
		}
		sp, computed := st.spread(c, name, Sample.TotalSec)
		if sp.N == 0 {
			s.missing++
			return
		}
		anyComputed = anyComputed || computed
		spreads[name] = sp
	}
	s.cells++
	if anyComputed {
		s.computed++
	}
	for name, sp := range spreads {
		s.seconds[name] += sp.Median
		s.ratio[name] += sp.Median / own.Median
		if name != subject && name != newName && own.Median >= sp.Median {
			s.slower[name] = append(s.slower[name], c.Image)
		}
	}
	if limit := st.limit(c); limit > 0 {
		over := own.Median / limit
		s.overLimit += over
		s.possible += spreads[plainName].Median / limit
		if over > s.worst {
			s.worst, s.worstImage = over, c.Image
		}
	}
}

func (st *Start) writeSummary(w *strings.Builder) {
	subject := st.subject()
	fmt.Fprintf(w, "Mean over the images of the medians, in seconds from nothing to the end of the task; speed-up: mean of the images' ratios to %s.\n\n", subject)
	names := st.systems()
	head := []string{"task", "link"}
	head = append(head, names...)
	for _, n := range names {
		if n != subject {
			head = append(head, subject+" over "+n)
		}
	}
	head = append(head, "limit over plain", "times the limit", "most", "images", "computed")
	var rows [][]string
	for _, s := range st.summaries() {
		row := []string{s.task, s.link.String()}
		for _, n := range names {
			row = append(row, measure.Figure(s.seconds[n]))
		}
		for _, n := range names {
			if n != subject {
				row = append(row, measure.Figure(s.ratio[n]))
			}
		}
		rows = append(rows, append(row, measure.Figure(s.possible), measure.Figure(s.overLimit),
			measure.Figure(s.worst)+" "+s.worstImage, fmt.Sprint(s.cells), fmt.Sprint(s.computed)))
	}
	measure.Table(w, 2, head, rows)
	for _, s := range st.summaries() {
		for name, images := range s.slower {
			fmt.Fprintf(w, "\n**Slower than %s** over %s, %s task: %s\n", name, s.link, s.task, strings.Join(images, ", "))
		}
	}
}

// systems returns the names of the systems that took part, in their usual order.
func (st *Start) systems() []string {
	return slices.DeleteFunc(allSystems(), func(name string) bool {
		return !slices.ContainsFunc(st.Samples, func(s Sample) bool { return s.System == name })
	})
}

func (st *Start) writeNeeds(w *strings.Builder) {
	w.WriteString("\nWhat the tasks need (files opened; of those from 4 MiB the parts of 1 MiB that were read; each compressed by itself with zstd):\n\n")
	var rows [][]string
	for _, n := range st.Needs {
		native := st.native(n.Image, n.Task)
		rows = append(rows, []string{n.Image, n.Task, fmt.Sprint(n.Files), measure.Megabytes(n.Bytes),
			measure.Megabytes(n.Touched), measure.Megabytes(n.Compressed), measure.Megabytes(n.Index), native.String()})
	}
	measure.Table(w, 2, []string{"image", "task", "files", "MB", "MB needed", "compressed", "indexes", "native run, s"}, rows)
}

// writeCells writes the total of each cell.
func (st *Start) writeCells(w *strings.Builder) {
	w.WriteString("\nPull and first run until the task is done, seconds: median of the rounds (least to greatest); c: computed from bytes and rate, not measured.\n\n")
	names := st.systems()
	var rows [][]string
	for _, c := range st.cells() {
		row := []string{c.Image, c.Task, link{c.Mbit, c.RTTms}.String()}
		for _, n := range names {
			sp, computed := st.spread(c, n, Sample.TotalSec)
			text := sp.String()
			if computed {
				text = "c " + text
			}
			row = append(row, text)
		}
		rows = append(rows, append(row, measure.Figure(st.limit(c))))
	}
	measure.Table(w, 3, append(append([]string{"image", "task", "link"}, names...), "limit"), rows)
}

// writeDetails writes the parts of the totals.
func (st *Start) writeDetails(w *strings.Builder) {
	w.WriteString("\nOf these: pull + first run / second run in a new container, seconds, and MB received by the end of the first run (medians).\n\n")
	names := st.systems()
	var rows [][]string
	for _, c := range st.cells() {
		row := []string{c.Image, c.Task, link{c.Mbit, c.RTTms}.String()}
		for _, n := range names {
			row = append(row, st.details(c, n))
		}
		rows = append(rows, row)
	}
	measure.Table(w, 3, append([]string{"image", "task", "link"}, names...), rows)
}

// details returns the parts of a system's total.
func (st *Start) details(c Cell, system string) string {
	anyComputed := false
	of := func(f func(Sample) float64) string {
		sp, computed := st.spread(c, system, f)
		anyComputed = anyComputed || computed
		return measure.Figure(sp.Median)
	}
	text := of(func(s Sample) float64 { return s.PullSec }) + " + " + of(func(s Sample) float64 { return s.RunSec })
	if anyComputed { // nothing was transferred over the link
		return "c " + text
	}
	return fmt.Sprintf("%s / %s; %s MB", text, of(func(s Sample) float64 { return s.SecondSec }), of(func(s Sample) float64 { return float64(s.RunBytes) / 1e6 }))
}

// pictures returns plots of the mean seconds by rate, one for each round trip.
func (st *Start) pictures() []measure.Picture {
	if st == nil {
		return nil
	}
	var out []measure.Picture
	all := st.summaries()
	var rtts []int
	for _, s := range all {
		if s.task == firstTask && !slices.Contains(rtts, s.rttMs) {
			rtts = append(rtts, s.rttMs)
		}
	}
	for _, rtt := range rtts {
		chart := measure.Chart{Title: fmt.Sprintf("Seconds from nothing to the end of the task, mean of the images, %d ms away", rtt), Across: "Mbit/s", Lines: true}
		for _, name := range st.systems() {
			chart.Series = append(chart.Series, measure.Series{Name: name})
		}
		for _, s := range all {
			if s.task != firstTask || s.rttMs != rtt || s.cells == 0 {
				continue
			}
			chart.Columns = append(chart.Columns, fmt.Sprint(s.mbit))
			for i := range chart.Series {
				v := s.seconds[chart.Series[i].Name]
				chart.Series[i].Points = append(chart.Series[i].Points, measure.SpreadOf([]float64{v}))
			}
		}
		if len(chart.Columns) > 0 {
			out = append(out, measure.Picture{File: fmt.Sprintf("start-%dms.svg", rtt), Chart: chart})
		}
	}
	return out
}
