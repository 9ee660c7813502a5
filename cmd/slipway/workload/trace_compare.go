package workload

import (
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/replay/result"
)

// gateFlags are the regressions that are allowed.
type gateFlags struct {
	regressions []string
}

func (f *gateFlags) add(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.regressions, "max-regression", nil, "METRIC=PERCENT% that a result may be worse than the first, such as p99=10%; may be repeated")
}

func (f *gateFlags) parse() (gates []result.Gate, err error) {
	for _, s := range f.regressions {
		g, err := result.ParseGate(s)
		if err != nil {
			return nil, err
		}
		gates = append(gates, g)
	}
	return gates, nil
}

func traceCompareCommand() *cobra.Command {
	var gates gateFlags
	var o result.CompareOptions
	var format, out string
	var confidence float64
	cmd := &cobra.Command{
		Use:   "compare RESULT RESULT [RESULT...]",
		Short: "Compare replays with the first one, with confidence intervals and gates",
		Long: `Compare results of slipway trace replay with the first one. The intervals are made by drawing
blocks of time at random, many times, a second long each. Use longer blocks if what happens in
one second depends much on the second before.

A gate fails if the metric is worse by more than its limit and the interval confirms that it
is worse. Metrics: mean, p50, p90, p99, p999 (of the latency from the intended time),
service-mean, service-p50, service-p99, rate, throughput, errors (in points).

Exit status 3 means that a gate failed, 4 that a run is not valid.`,
		Example: `  slipway trace compare before after --max-regression p99=10% --max-regression errors=0.1%
  slipway trace compare three/slipway three/zot --format html -o three.html`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Gates, err = gates.parse(); err != nil {
				return err
			}
			if o.Confidence = confidence / 100; confidence <= 0 || confidence >= 100 || o.BlockSeconds < 1 || o.Resamples < 1 {
				return command.Usagef("--confidence is between 0 and 100; --block and --resamples are 1 or more")
			}
			results, err := loadResults(args)
			if err != nil {
				return err
			}
			comparisons := compareAll(results, o)
			err = output(cmd, out, func(w io.Writer) error { return writeResults(w, format, results, comparisons, 1) })
			if err != nil {
				return err
			}
			return verdict(results, comparisons)
		},
	}
	fl := cmd.Flags()
	gates.add(fl)
	fl.Float64Var(&confidence, "confidence", 95, "confidence of the intervals, in percent")
	fl.Int64Var(&o.BlockSeconds, "block", 1, "length of the blocks of time, in seconds")
	fl.IntVar(&o.Resamples, "resamples", 1000, "number of times that blocks are drawn")
	fl.Uint64Var(&o.Seed, "seed", 0, "seed of the drawing")
	command.AddForm(fl, &format, "format", "json", "html", "csv", "junit")
	command.AddPath(fl, &out, "out", "file to write (default: standard output)")
	return cmd
}

// compareAll compares results with the first of them.
func compareAll(results []*result.Result, o result.CompareOptions) []*result.Comparison {
	var out []*result.Comparison
	for _, r := range results[1:] {
		out = append(out, result.Compare(results[0], r, o))
	}
	return out
}
