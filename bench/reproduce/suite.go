// Package reproduce assembles one report of every table and figure of the four works that Slipway
// grows from. Each entry stands beside the published values, with a verdict that a stated rule gives.
//
// Most parts are measured by other suites, which keep their raw figures as JSON in one directory.
// This suite runs them one by one, measures what concerns traces itself, and reads the raw figures of
// all. What the report shows of them is kept in the repository, so that a later report has it too. What was not run is in the report as well, with the command that runs it.
package reproduce

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/integration/bench/measure"
)

// options are the options of the command line.
type options struct {
	binary, ceph      string
	only, raw, dir    string
	figures           string
	doc, images, page string
	commit, traces    string
	quick             bool
	others            []measure.Suite
}

// onlyReport is the name that stands for no part: only the report is written.
const onlyReport = "report"

func parse(args []string, others []measure.Suite) (*options, error) {
	o := &options{others: others}
	var names []string
	for _, p := range Parts() {
		names = append(names, p.Name)
	}
	fl := flag.NewFlagSet("bench reproduce", flag.ContinueOnError)
	fl.StringVar(&o.only, "only", "", "`names` of the parts to measure, separated by commas, or report to measure nothing (default all, one after the other): "+strings.Join(names, ","))
	fl.StringVar(&o.raw, "raw", "bin", "`directory` of the raw figures")
	fl.StringVar(&o.figures, "figures", "", "`directory` of the figures that are kept of each part: the report completes them, and has what earlier runs left there (default: none are kept)")
	fl.StringVar(&o.doc, "doc", "", "Markdown `file` to write the report into, between its marks (default: print it)")
	fl.StringVar(&o.images, "img", "", "`directory` for the pictures")
	fl.StringVar(&o.page, "html", "", "HTML `file` to write the report into")
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.ceph, "ceph-bin", os.Getenv("SLIPWAY_CEPH_BIN"), "slipway `binary` with the driver rbd (default $SLIPWAY_CEPH_BIN)")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for what is measured")
	fl.StringVar(&o.traces, "traces", os.Getenv("SLIPWAY_TRACES"), "`directory` of the real sample (default $SLIPWAY_TRACES; neither: it is not simulated)")
	fl.StringVar(&o.commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.BoolVar(&o.quick, "quick", false, "small traces")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if fl.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fl.Arg(0))
	}
	_, err := o.chosen()
	return o, err
}

// chosen returns the parts to measure.
func (o *options) chosen() ([]Part, error) {
	if o.only == onlyReport {
		return nil, nil
	}
	return measure.ChooseBy(Parts(), func(p Part) string { return p.Name }, o.only)
}

// Suite returns the suite. It runs parts of the others.
func Suite(others ...measure.Suite) measure.Suite {
	return measure.NewSuite("reproduce", "every table and figure of the four papers, beside the published one",
		func(args []string) (*options, error) { return parse(args, others) }, (*options).run)
}

// run measures the parts one by one and writes the report. A part that fails does not keep the others
// from running.
func (o *options) run(ctx context.Context) (good bool, err error) {
	parts, err := o.chosen()
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.raw, 0o755); err != nil {
		return false, err
	}
	var errs []error
	for _, p := range parts {
		if err := o.part(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("part %s: %w", p.Name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	errs = append(errs, o.report())
	return true, errors.Join(errs...)
}

// part measures a part.
func (o *options) part(ctx context.Context, p Part) error {
	fmt.Fprintf(os.Stderr, "== part %s, about %d minutes\n", p.Name, p.Minutes)
	if p.Suite == "" {
		return o.own(ctx, p)
	}
	i := slices.IndexFunc(o.others, func(s measure.Suite) bool { return s.Name == p.Suite })
	if i < 0 {
		return fmt.Errorf("there is no suite %s", p.Suite)
	}
	binary := o.binary
	if p.Ceph {
		binary = o.ceph
	}
	args := append(slices.Clone(p.Args), "-bin", binary, "-dir", o.dir, "-commit", o.commit, "-command", "make reproduce ONLY="+p.Name,
		"-out", filepath.Join(o.raw, resultsFile(p.Suite)))
	_, err := o.others[i].Run(ctx, args)
	return err
}

// session is a run of a part that this suite measures itself.
type session struct {
	*measure.Bench
	o       *options
	results *Results
}

// own measures a part and keeps it in the file.
func (o *options) own(ctx context.Context, p Part) (err error) {
	common := &measure.Options{Binary: o.binary, Dir: o.dir, Rounds: 1, Quick: o.quick, Commit: o.commit, Command: "make reproduce ONLY=" + p.Name}
	b, err := common.Start("reproduce")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	s := &session{Bench: b, o: o, results: &Results{}}
	do := s.traces
	if p.Name == partCaches {
		do = s.caches
	}
	if err := do(ctx); err != nil {
		return err
	}
	var old *Results
	if err := load(&old, o.raw, ownFile); err != nil {
		return err
	}
	s.results.Fill(old)
	return measure.Save(filepath.Join(o.raw, ownFile), s.results)
}

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- reproduction:begin (make reproduce writes what is between the two marks) -->",
		End:   "<!-- reproduction:end -->",
	}
}

// report reads all raw figures and those that are kept, and writes the report.
func (o *options) report() error {
	raw, err := readRaw(o.raw)
	if err != nil {
		return err
	}
	kept, err := readFigures(o.figures)
	if err != nil {
		return err
	}
	all := found(raw, kept)
	if o.figures != "" {
		if err := all.write(o.figures, Entries()); err != nil {
			return fmt.Errorf("keep figures: %w", err)
		}
	}
	r := newReport(all)
	if o.images != "" {
		if err := r.writePictures(o.images); err != nil {
			return fmt.Errorf("write pictures: %w", err)
		}
	}
	if o.page != "" {
		var page strings.Builder
		if err := r.html(&page); err != nil {
			return err
		}
		if err := os.WriteFile(o.page, []byte(page.String()), 0o644); err != nil {
			return err
		}
	}
	for _, j := range r.Entries {
		if o.doc != "" {
			fmt.Printf("%-12s %-18s %s\n", j.Paper, j.Name, j.verdictText())
		}
	}
	out := measure.Output{Document: o.doc}
	return out.Publish(marks(), "", r.markdown(), nil)
}
