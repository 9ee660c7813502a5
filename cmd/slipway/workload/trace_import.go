package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/store"
)

// traceInputFlags says how logs are read.
type traceInputFlags struct {
	format, zone, start string
	rate                float64
}

func (f *traceInputFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.format, "format", "auto", "format of the logs: auto, "+strings.Join(formats.Names(), ", "))
	fl.StringVar(&f.zone, "zone", "", "zone of the records (default: the zone in the file names of the IBM traces, or else \"default\")")
	fl.StringVar(&f.start, "start", "2000-01-01T00:00:00Z", "time of the first record of format uris")
	fl.Float64Var(&f.rate, "rate", 10, "records a second of format uris")
}

// input returns the logs to read. If identify is set, records without ids get new ids.
func (f *traceInputFlags) input(identify bool) (*logs.Input, error) {
	format, err := formats.Parse(f.format)
	if err != nil {
		return nil, command.Usagef("--format: %w", err)
	}
	if f.zone != "" {
		if err := store.CheckZone(f.zone); err != nil {
			return nil, command.Usagef("--zone: %w", err)
		}
	}
	start, err := parseMoment(f.start)
	if err != nil {
		return nil, command.Usagef("--start: %w", err)
	}
	if !(f.rate > 0 && f.rate <= 1e9) {
		return nil, command.Usagef("--rate is %v; it must be above 0 and at most 1e9", f.rate)
	}
	return logs.NewInput(&logs.InputOptions{Format: format, Start: start, Rate: f.rate, Identify: identify}), nil
}

func traceImportCommand() *cobra.Command {
	var f struct {
		input  traceInputFlags
		out    string
		output string
		drop   bool
		memory int64
	}
	cmd := &cobra.Command{
		Use:   "import {FILE | DIR}... -o STORE",
		Short: "Read logs of registries into a store",
		Long: `Read logs of registries into a store of Parquet files, one per zone and day, with rows in
order of time. The command detects the format of each file, even behind the prefixes of
kubectl, Docker, syslog and journald. Files may be compressed with gzip, zstd, xz or bzip2, or
be tar archives. All files of a directory are read, except logs of Harbor that repeat the log
of its proxy. The store may exist already; records are added.

What cannot be read is skipped, counted and named; the rest is imported. It is an error if no
request can be read. Duplicates, which have the same time, URI and id, are counted, too. With
--drop-duplicates a record without an id gets an id that is made from its content.`,
		Example: `  slipway trace import /var/log/slipway/access.log -o traces
  slipway trace import DockerRegistryTraces.tar.gz -o ibm
  slipway trace import nginx/*.gz --format nginx --zone fra -o traces
  slipway trace import uris.csv.zst --format uris --start 2017-06-20 --rate 2.8 --zone dal09 -o sample`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := f.input.input(f.drop)
			if err != nil {
				return err
			}
			if err := checkStore(f.out); err != nil {
				return err
			}
			if f.memory < 1 || f.memory > maxMemory {
				return command.Usagef("--memory is %d MiB; it is 1 to %d", f.memory, maxMemory)
			}
			files, total, err := logs.Files(args)
			if err != nil {
				return err
			}
			w, err := store.NewWriter(f.out, &store.WriterOptions{DropDuplicates: f.drop, Memory: f.memory << 20})
			if err != nil {
				return err
			}
			// Most of the memory holds records that stay until they are written. Scanning
			// them as often as by default takes a tenth of the time.
			if os.Getenv("GOGC") == "" {
				defer debug.SetGCPercent(debug.SetGCPercent(250))
			}
			p := command.NewProgress("import")
			began := time.Now()
			done, err := ingest.Import(cmd.Context(), in, files, w, &ingest.ImportOptions{Zone: f.input.zone, ForceZone: f.input.zone != "",
				Progress: func(records int64) {
					p.Share(in.Read(), total, "%d records, %.0f/s", records, float64(records)/time.Since(began).Seconds())
				}})
			p.End()
			if n := in.Identified(); n > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d records had no id in their logs and got one that is made of their content; "+
					"copies from imports without --drop-duplicates are not found\n", n)
			}
			if f.output == "json" {
				if jerr := printJSON(cmd.OutOrStdout(), done); err == nil {
					err = jerr
				}
			} else {
				printImported(cmd.OutOrStdout(), done, len(files), time.Since(began))
			}
			return err
		},
	}
	f.input.add(cmd)
	fl := cmd.Flags()
	command.AddPath(fl, &f.out, "store", "directory of the store")
	command.AddForm(fl, &f.output, "output", "json")
	fl.BoolVar(&f.drop, "drop-duplicates", false, "leave out records with the same time, URI and id as another record")
	fl.Int64Var(&f.memory, "memory", 256, "memory that records may take before they are written to files, in MiB")
	return cmd
}

// maxMemory bounds the memory in MiB for records that are not in files yet. It is more
// than any machine has.
const maxMemory = 1 << 24

// checkStore returns an error if the destination of a store is not given.
func checkStore(dir string) error {
	if dir == "" {
		return command.Usagef("-o tells which directory the store goes to, and is needed")
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// duplicates describes the duplicates, if there are any.
func duplicates(w *store.Written) string {
	if w.Duplicates == 0 {
		return ""
	}
	return fmt.Sprintf("; %d duplicates, %d of them left out", w.Duplicates, w.Dropped)
}

// printImported prints the summary of an import.
func printImported(out io.Writer, im *ingest.Imported, files int, took time.Duration) {
	fmt.Fprintf(out, "%d records from %d files in %s (%.0f/s)\n", im.Records, files, took.Round(10*time.Millisecond), float64(im.Records)/took.Seconds())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printCounts(w, "zone", im.Zones, im.Records)
	printShares(w, &im.Counts)
	w.Flush()
	fmt.Fprintf(out, "%d records in %d files of the store%s\n", im.Written.Records, im.Written.Files, duplicates(&im.Written))
	if len(im.Unknown) > 0 {
		fmt.Fprintln(out, "unknown requests, which are in the store; the first are")
		for _, p := range im.Unknown {
			fmt.Fprintf(out, "  %s, record %d: %s\n", command.Printable(p.File), p.Record, p.Why)
		}
	}
	printSkipped(out, im.Skipped)
}

// printSkipped prints what was left out and why.
func printSkipped(out io.Writer, skipped []logs.Skipped) {
	for _, s := range skipped {
		fmt.Fprintf(out, "skipped %d: %s; the first are\n", s.Count, s.Kind)
		for _, p := range s.First {
			if p.Record == 0 {
				fmt.Fprintf(out, "  %s: %s\n", command.Printable(p.File), p.Why)
				continue
			}
			fmt.Fprintf(out, "  %s, record %d: %s\n", command.Printable(p.File), p.Record, p.Why)
		}
	}
}

// printShares prints how many requests there are of each kind.
func printShares(w io.Writer, c *store.Counts) {
	printCounts(w, "kind", c.Kinds, c.Records)
	printCounts(w, "method", c.Methods, c.Records)
	statuses := map[string]int64{}
	for status, n := range c.Statuses {
		name := fmt.Sprint(status)
		if status == 0 {
			name = "unknown"
		}
		statuses[name] = n
	}
	printCounts(w, "status", statuses, c.Records)
}

// printCounts prints counts with their shares, the largest first.
func printCounts(w io.Writer, what string, counts map[string]int64, total int64) {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	for i, name := range names {
		label := ""
		if i == 0 {
			label = what
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.1f %%\n", label, name, counts[name], 100*float64(counts[name])/float64(max(total, 1)))
	}
}
