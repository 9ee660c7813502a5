package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/replay/result"
)

func traceReportCommand() *cobra.Command {
	var format, out string
	var maxErrors float64
	cmd := &cobra.Command{
		Use:   "report RESULT",
		Short: "Show what a replay measured",
		Long: `Evaluate the samples of a result of slipway trace replay. The report is text, JSON, CSV (one
line for each group of requests), JUnit (checks, for build servers) or one HTML page with
plots. If the run is still under way, or was killed, the report covers what was written.

Exit status 4 means that the run is not valid: its figures show the limits of the load
generator, not of the registry.`,
		Example: `  slipway trace report monday
  slipway trace report monday --format html -o monday.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			results, err := loadResults(args)
			if err != nil {
				return err
			}
			err = output(cmd, out, func(w io.Writer) error { return writeResults(w, format, results, nil, maxErrors/100) })
			if err != nil {
				return err
			}
			return verdict(results, nil)
		},
	}
	command.AddForm(cmd.Flags(), &format, "format", "json", "html", "csv", "junit")
	command.AddPath(cmd.Flags(), &out, "out", "file to write (default: standard output)")
	cmd.Flags().Float64Var(&maxErrors, "max-errors", 0, "with junit: percentage of the requests that may fail")
	return cmd
}

// loadResults reads results, and gives them distinct names.
func loadResults(dirs []string) ([]*result.Result, error) {
	var out []*result.Result
	for _, d := range dirs {
		r, err := result.Load(d)
		if err != nil {
			return nil, err
		}
		if abs, err := filepath.Abs(d); err == nil {
			r.Name = filepath.Base(abs)
		}
		if slices.ContainsFunc(out, func(o *result.Result) bool { return o.Name == r.Name }) {
			r.Name = d
		}
		out = append(out, r)
	}
	return out, nil
}

// writeResults writes results, and comparisons if there are any, in a format.
func writeResults(w io.Writer, format string, results []*result.Result, comparisons []*result.Comparison, maxErrors float64) error {
	switch format {
	case "text":
		if len(comparisons) == 0 {
			return results[0].Text(w)
		}
		for _, c := range comparisons {
			if err := c.Text(w); err != nil {
				return err
			}
			fmt.Fprintln(w)
		}
		return nil
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		if len(comparisons) == 0 {
			return e.Encode(results[0].Summary)
		}
		return e.Encode(comparisons)
	case "html":
		return result.HTML(w, "Replay", results, comparisons)
	case "csv":
		return result.CSV(w, results)
	case "junit":
		var checks []result.Check
		for _, r := range results {
			checks = append(checks, r.Checks(maxErrors)...)
		}
		for _, c := range comparisons {
			checks = append(checks, c.Checks()...)
		}
		return result.JUnit(w, checks)
	}
	return fmt.Errorf("unknown format %q", format)
}

// output writes to a file, or to standard output if none is named.
func output(cmd *cobra.Command, path string, write func(io.Writer) error) error {
	if path == "" {
		return write(cmd.OutOrStdout())
	}
	return writeReport(path, func(f *os.File) error { return write(f) })
}

// writeReport writes a file.
func writeReport(path string, write func(*os.File) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
