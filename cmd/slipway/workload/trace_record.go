package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/trace/ingest"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
	"example.org/slipway/workload/trace/store"
)

// recordFlags are the flags of slipway trace record.
type recordFlags struct {
	out, zone, format string
	all               bool
	limit, every      time.Duration
}

func traceRecordCommand() *cobra.Command {
	var f recordFlags
	cmd := &cobra.Command{
		Use:   "record {ACCESS-LOG | -} -o STORE",
		Short: "Record the requests that a running registry gets",
		Long: `Follow the access log of a running registry and write it into a store until interrupted,
or for as long as --for says. A log that is rotated is followed to its new file; "-" reads
standard input until it ends.

The command detects the format as import does, from the lines that the log has already or from
the first new ones. At intervals of --every it publishes the new records. It is an error if
there are lines but no request among them.`,
		Example: `  slipway trace record /var/log/slipway/access.log -o traces
  slipway trace record /var/log/slipway/access.log -o traces --all --for 24h --zone fra`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fl := cmd.Flags()
	command.AddPath(fl, &f.out, "store", "directory of the store")
	fl.StringVar(&f.zone, "zone", "default", "zone of the records")
	fl.StringVar(&f.format, "format", "auto", "format of the log: auto, "+strings.Join(timedFormats(), ", "))
	fl.BoolVar(&f.all, "all", false, "record the lines that the log has already, too")
	fl.DurationVar(&f.limit, "for", 0, "end after this time (default: when interrupted)")
	fl.DurationVar(&f.every, "every", 10*time.Minute, "how often to publish new records")
	return cmd
}

// timedFormats returns the formats whose records have times.
func timedFormats() []string {
	return slices.DeleteFunc(formats.Names(), func(name string) bool { return name == string(formats.URIs) })
}

func (f *recordFlags) run(cmd *cobra.Command, path string) error {
	if err := checkStore(f.out); err != nil {
		return err
	}
	format, err := formats.Parse(f.format)
	if err != nil || format == formats.URIs { // which has no times
		return command.Usagef("--format is %q; a log that is followed is auto, %s", f.format, strings.Join(timedFormats(), ", "))
	}
	if err := store.CheckZone(f.zone); err != nil {
		return command.Usagef("--zone: %w", err)
	}
	if f.limit < 0 || f.every <= 0 {
		return command.Usagef("--for and --every are more than 0")
	}
	w, err := store.NewWriter(f.out, nil)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if f.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.limit)
		defer cancel()
	}
	var log io.Reader
	if path == "-" {
		// A read of standard input cannot be interrupted, so the copy ends with the
		// process.
		r, w := io.Pipe()
		go func() {
			_, err := io.Copy(w, cmd.InOrStdin())
			w.CloseWithError(err)
		}()
		defer context.AfterFunc(ctx, func() { w.Close() })()
		log = r
	} else {
		follower, err := logs.Follow(path, !f.all)
		if err != nil {
			return errors.Join(err, w.Close())
		}
		defer follower.Close()
		defer context.AfterFunc(ctx, follower.Stop)()
		log = follower
	}
	in := logs.NewInput(&logs.InputOptions{Format: format})
	p := command.NewProgress("record")
	n, err := ingest.Record(in, log, path, w, &ingest.RecordOptions{Zone: f.zone, Every: f.every,
		Progress: func(n int64) { p.Show("%d records", n) }})
	p.End()
	fmt.Fprintf(cmd.OutOrStdout(), "%d records, %d in %d files\n", n, w.Written().Records, w.Written().Files)
	printSkipped(cmd.OutOrStdout(), in.Skipped())
	return err
}
