package workload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/analyze/external"
	"example.org/slipway/workload/trace/store"
)

// analyzeFlags are the flags of slipway trace analyze.
type analyzeFlags struct {
	out, from, to, sizes, location, layers, form string
	o                                            analyze.Options
	plugins                                      []string
}

func traceAnalyzeCommand() *cobra.Command {
	var f analyzeFlags
	cmd := &cobra.Command{
		Use:   "analyze STORE -o DIR",
		Short: "Describe the workload by every figure of the FAST'18 study",
		Long: `Read a store of traces once and make Table 1 and Figures 4 to 15 of Anwar et al., FAST'18: the
mix of requests, sizes, durations, load, popularity, sessions, concurrency, idle times. DIR
then has index.html, one page with all plots, tables and definitions, which shows the numbers
of the paper for its zones too; and the same as report.json, CSV and SVG files. If the source
lacks something, such as sizes, the report says so and never counts it as 0.

Times are RFC 3339 or a day; --from is included, --to is not.`,
		Example: `  slipway trace analyze traces -o report
  slipway trace analyze traces -o week --zone dal09 --from 2017-07-03 --to 2017-07-10`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runTraceAnalyze(cmd, &f, args[0]) },
	}
	fl := cmd.Flags()
	command.AddPath(fl, &f.out, "out", "directory for the report; made if it is missing")
	command.AddForm(fl, &f.form, "output", "json")
	fl.StringSliceVar(&f.o.Zones, "zone", nil, "zones to analyse (default: all)")
	fl.StringVar(&f.from, "from", "", "leave out requests before this time")
	fl.StringVar(&f.to, "to", "", "leave out requests from this time on")
	fl.DurationVar(&f.o.Session, "session", time.Minute, "Figure 12: for how long after a manifest requests for layers belong to it")
	fl.BoolVar(&f.o.StopAtNext, "stop-at-next-manifest", false, "Figure 12: a session ends at the client's next manifest of the repository")
	fl.StringVar(&f.sizes, "sizes", "get", "Figure 6: sizes of downloads or of uploads (get, put)")
	fl.DurationVar(&f.o.KeepAlive, "keep-alive", time.Minute, "Figure 13a, second form: how long a client stays active after a request")
	fl.StringVar(&f.location, "time-zone", "UTC", "Figure 14: time zone of the hours and weekdays, such as Europe/Berlin")
	fl.StringVar(&f.layers, "layers-by", string(analyze.ByDigest), "Figures 10a, 11a: which layers count as the same, those of one digest or of one uri (digest, uri)")
	fl.StringSliceVar(&f.plugins, "plugin", nil, "programs that compute further figures: see docs/analysis.md")
	fl.IntVar(&f.o.Workers, "workers", 0, "zones read at once (default: the number of cores)")
	return cmd
}

func runTraceAnalyze(cmd *cobra.Command, f *analyzeFlags, dir string) error {
	if err := f.options(); err != nil {
		return err
	}
	s, err := store.Open(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	externals, err := f.externals(cmd.Context(), s)
	if err != nil {
		return err
	}
	drop := func() {}
	if f.out != "" {
		if drop, err = reportDir(f.out); err != nil {
			return err
		}
	}
	p := command.NewProgress("analysing")
	start := time.Now()
	f.o.Progress = func(n analyze.Progress) { showRecords(p, start, n) }
	rep, err := analyze.Run(cmd.Context(), s, &f.o)
	p.End()
	for _, e := range externals {
		err = errors.Join(err, e.Err())
	}
	if err == nil && rep.Settings.TotalRequests == 0 {
		err = fmt.Errorf("the zones have no requests from --from to --to")
	}
	if err != nil {
		drop()
		return err
	}
	if f.out != "" {
		if err := rep.Write(f.out); err != nil {
			return err
		}
	}
	if f.form == "json" {
		return printJSON(cmd.OutOrStdout(), rep)
	}
	took := time.Since(start)
	fmt.Fprintf(cmd.OutOrStdout(), "%d requests of %d zones in %s; report in %s\n", rep.Settings.TotalRequests, len(rep.Zones),
		took.Round(10*time.Millisecond), filepath.Join(f.out, "index.html"))
	return nil
}

// externals starts each plug-in once, so that it describes itself, and adds the plug-ins
// to the options.
func (f *analyzeFlags) externals(ctx context.Context, s *store.Store) (out []*external.Program, err error) {
	for _, program := range f.plugins {
		e, err := external.New(ctx, program, s.Name)
		if err != nil {
			return nil, err
		}
		f.o.Plugins = append(f.o.Plugins, e.Plugin(ctx))
		out = append(out, e)
	}
	return out, nil
}

// reportDir creates the directory of a report, and checks before the pass that files can
// be written there. drop removes what it created.
func reportDir(dir string) (drop func(), err error) {
	_, err = os.Stat(dir)
	drop = func() {}
	if errors.Is(err, fs.ErrNotExist) {
		drop = func() { _ = os.Remove(dir) } // fails unless it is empty
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	probe, err := os.CreateTemp(dir, ".slipway-*")
	if err != nil {
		drop()
		return nil, err
	}
	return drop, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// options parses the flags that have words as values.
func (f *analyzeFlags) options() (err error) {
	if f.out == "" && f.form == "text" {
		return command.Usagef("-o tells where the report goes, and is needed unless --output json prints it")
	}
	if f.o.Session <= 0 || f.o.KeepAlive <= 0 {
		return command.Usagef("--session and --keep-alive are more than 0")
	}
	if f.o.SizesOf = store.ParseMethod(strings.ToUpper(f.sizes)); f.o.SizesOf != store.GET && f.o.SizesOf != store.PUT {
		return command.Usagef("--sizes is %q; it is get or put", f.sizes)
	}
	if f.o.Location, err = time.LoadLocation(f.location); err != nil {
		return command.Usagef("--time-zone: %w", err)
	}
	f.o.LayersBy = analyze.LayersBy(f.layers)
	f.o.From, f.o.To, err = parseSpan(f.from, f.to)
	return err
}

// showRecords shows the progress of a pass, with its rate and the remaining time.
func showRecords(p *command.Progress, start time.Time, n analyze.Progress) {
	took := time.Since(start).Seconds()
	if took <= 0 || n.Records == 0 {
		return
	}
	rate := float64(n.Records) / took
	left := time.Duration(float64(n.Total-n.Records) / rate * float64(time.Second)).Round(time.Second)
	p.Show("%d of %d requests, %d %%, %.2f M/s, %s left; zone %s", n.Records, n.Total, n.Records*100/n.Total, rate/1e6, left, n.Zone)
}
