package workload

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/trace/figures"
	"example.org/slipway/workload/trace/store"
)

// traceRangeFlags select the part of a store for a command.
type traceRangeFlags struct {
	zones    []string
	from, to string
}

func (f *traceRangeFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringSliceVar(&f.zones, "zone", nil, "zones (default: all)")
	fl.StringVar(&f.from, "from", "", "leave out requests before this time")
	fl.StringVar(&f.to, "to", "", "leave out requests from this time on")
}

func (f *traceRangeFlags) times() (from, to time.Time, err error) { return parseSpan(f.from, f.to) }

// parseSpan parses the flags --from and --to.
func parseSpan(fromText, toText string) (from, to time.Time, err error) {
	if from, err = parseMoment(fromText); err != nil {
		return from, to, command.Usagef("--from: %w", err)
	}
	if to, err = parseMoment(toText); err != nil {
		return from, to, command.Usagef("--to: %w", err)
	}
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return from, to, command.Usagef("--from %s is not before --to %s", fromText, toText)
	}
	return from, to, nil
}

// parseMoment parses a time. A day means its first moment in UTC, and "" means no time.
func parseMoment(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateOnly} {
		if t, err := time.Parse(form, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a time such as 2017-06-20T12:00:00Z nor a day such as 2017-06-20", s)
}

// zoneReport is the report of slipway trace info on a zone.
type zoneReport struct {
	*store.ZoneInfo
	Figures *figures.Figures `json:"figures,omitempty"`
}

func traceInfoCommand() *cobra.Command {
	var part traceRangeFlags
	var output string
	var withFigures bool
	cmd := &cobra.Command{
		Use:   "info STORE",
		Short: "Show what is in a store of traces",
		Long: `Show what is in a store of traces: zones, days, requests by kind, method and status.

With --figures, also show how popular things are and in which order they are requested.
docs/trace.md defines each figure.`,
		Example: `  slipway trace info traces
  slipway trace info traces --zone dal09 --figures
  slipway trace info traces --from 2017-07-03 --to 2017-07-10 --output json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to, err := part.times()
			if err != nil {
				return err
			}
			s, err := store.Open(args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			reports, err := zoneReports(cmd.Context(), s, store.Query{From: from, To: to}, part.zones, withFigures)
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), reports)
			}
			for i, r := range reports {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				r.print(cmd.OutOrStdout())
			}
			return nil
		},
	}
	part.add(cmd)
	command.AddForm(cmd.Flags(), &output, "output", "json")
	cmd.Flags().BoolVar(&withFigures, "figures", false, "show popularity and order, too")
	return cmd
}

// zoneReports makes a report of each zone.
func zoneReports(ctx context.Context, s *store.Store, q store.Query, zones []string, withFigures bool) ([]zoneReport, error) {
	if len(zones) == 0 {
		for _, z := range s.Zones() {
			zones = append(zones, z.Name)
		}
	}
	p := command.NewProgress("reading")
	defer p.End()
	var out []zoneReport
	for i, name := range zones {
		p.Show("zone %s, %d of %d", name, i+1, len(zones))
		q.Zone = name
		info, err := s.Info(ctx, q)
		if err != nil {
			return nil, err
		}
		r := zoneReport{ZoneInfo: info}
		if withFigures {
			if r.Figures, err = figures.Of(ctx, s, q); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func (r *zoneReport) print(out io.Writer) {
	z := &r.Zone
	fmt.Fprintf(out, "zone %s: %d requests on %d days, %s to %s", z.Name, z.Records, len(z.Days), z.First.Format(time.RFC3339), z.Last.Format(time.RFC3339))
	if r.Absent > 0 {
		fmt.Fprintf(out, "; %d days in between are absent", r.Absent)
	}
	fmt.Fprintln(out)
	if r.Counts.Records != z.Records {
		fmt.Fprintf(out, "%d requests in the given time\n", r.Counts.Records)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printShares(w, &r.Counts)
	printCounts(w, "mix", r.Counts.Mix, r.Counts.Records)
	w.Flush()
	if r.UnknownSizes < r.Counts.Records {
		fmt.Fprintf(out, "bytes got %s, put %s\n", command.Size(r.GETBytes), command.Size(r.PUTBytes))
	}
	if r.UnknownSizes > 0 {
		fmt.Fprintf(out, "%d requests are of unknown size\n", r.UnknownSizes)
	}
	if r.Figures != nil {
		printFigures(out, r.Figures)
	}
}

func printFigures(out io.Writer, f *figures.Figures) {
	share := func(n int64) float64 { return 100 * float64(n) / float64(max(f.GETs, 1)) }
	fmt.Fprintf(out, "\nGETs: %d; pings %.1f %%, blobs %.1f %%, manifests %.1f %%, others %.1f %%\n", f.GETs, share(f.Pings), share(f.Blobs), share(f.Manifests), share(f.Others))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "GETs of\tdistinct\ttop 1 %\ttop 10\trank 1\tonce\tZipf slope\t")
	for _, row := range []struct {
		name string
		p    figures.Popularity
	}{
		{"blobs by digest", f.BlobDigests}, {"blobs by URI", f.BlobURIs}, {"manifests by URI", f.ManifestURIs},
		{"manifests by reference", f.ManifestRefs}, {"repositories", f.Repositories}, {"namespaces", f.Namespaces},
	} {
		p := row.p
		fmt.Fprintf(w, "%s\t%d\t%.1f %%\t%.1f %%\t%.1f %%\t%.0f %%\t%.2f\t\n", row.name, p.Distinct, 100*p.Top1, 100*p.Top10, 100*p.Rank1, 100*p.Once, p.Slope)
	}
	w.Flush()
	fmt.Fprintf(out, "blob GETs per manifest GET: %.2f\n", f.BlobsPerManifest)
	fmt.Fprintf(out, "blob GETs that are the first of their digest: %.0f %%, of these after a manifest of the repository: %.1f %%\n", 100*f.FirstTouches, 100*f.FirstTouchesAfterManifest)
	for _, g := range f.Growth {
		fmt.Fprintf(out, "distinct digests after %d blob GETs: %d\n", g.BlobGETs, g.Distinct)
	}
	if len(f.Growth) > 1 {
		fmt.Fprintf(out, "exponent of that growth: %.1f\n", f.GrowthExponent)
	}
	d := f.StackDistance
	fmt.Fprintf(out, "other digests between two GETs of one: median %d, p75 %d, p90 %d, p99 %d\n", int64(d.Median), int64(d.P75), int64(d.P90), int64(d.P99))
	for _, v := range f.Followed {
		fmt.Fprintf(out, "manifest GETs with a blob GET of the repository in the next %d: %.0f %%; layers then: median %.0f, p90 %.0f, mean %.1f\n",
			v.Within, 100*v.Share, v.Layers.Median, v.Layers.P90, v.Mean)
	}
	fmt.Fprintf(out, "repositories like a single pull: %d, over a median of %d GETs, half of the gaps above %d\n", f.SinglePulls.Repositories, f.SinglePulls.Spread, f.SinglePulls.Gap)
	fmt.Fprintf(out, "run of pings: %.2f in the mean, %.2f if they were independent\n", f.PingRun, f.PingRunIndependent)
}
