package workload

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/trace/store"
)

func traceCutCommand() *cobra.Command {
	var part traceRangeFlags
	var repos []string
	var out string
	cmd := &cobra.Command{
		Use:   "cut STORE -o STORE",
		Short: "Copy a part of a store of traces into another store",
		Long: `Copy the requests of some zones, times and repositories to another store. In the name of a
repository, * stands for any text without a slash. If repositories are named, requests that
have no repository, such as pings, are left out.`,
		Example: `  slipway trace cut traces -o week --from 2017-07-03 --to 2017-07-10 --zone dal09
  slipway trace cut traces -o one --repo library/nginx --repo 'team/*'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := store.CopyOptions{Zones: part.zones, Repos: repos}
			var err error
			if o.From, o.To, err = part.times(); err != nil {
				return err
			}
			s, err := store.Open(args[0])
			if err != nil {
				return err
			}
			defer s.Close()
			return copyStore(cmd, s, out, "cut", &o)
		},
	}
	part.add(cmd)
	cmd.Flags().StringSliceVar(&repos, "repo", nil, "repositories (default: all)")
	command.AddPath(cmd.Flags(), &out, "store", "directory of the new store")
	return cmd
}

// copyStore copies a store with progress, and prints what was done.
func copyStore(cmd *cobra.Command, s *store.Store, out, doing string, o *store.CopyOptions) error {
	if err := checkStore(out); err != nil {
		return err
	}
	same, err := sameFile(s.Dir(), out)
	if err != nil {
		return err
	}
	if same {
		return command.Usagef("a store cannot be copied to itself")
	}
	w, err := store.NewWriter(out, nil)
	if err != nil {
		return err
	}
	var total int64
	for _, z := range s.Zones() {
		total += z.Records
	}
	p := command.NewProgress(doing)
	began := time.Now()
	o.Progress = func(read, written int64) {
		rate := float64(read) / time.Since(began).Seconds()
		left := time.Duration(float64(total-read) / rate * float64(time.Second)).Round(time.Second)
		p.Show("%d of %d records, %.0f/s, at most %s left; %d written", read, total, rate, left, written)
	}
	done, err := s.Copy(cmd.Context(), w, o)
	p.End()
	fmt.Fprintf(cmd.OutOrStdout(), "%d records in %d files%s\n", done.Records, done.Files, duplicates(&done))
	return err
}

// sameFile reports whether two paths mean the same file. One of the files may not exist.
func sameFile(a, b string) (bool, error) {
	a, err := filepath.Abs(a)
	if err != nil {
		return false, err
	}
	b, err = filepath.Abs(b)
	if err != nil {
		return false, err
	}
	if real, err := filepath.EvalSymlinks(a); err == nil {
		a = real
	}
	if real, err := filepath.EvalSymlinks(b); err == nil {
		b = real
	}
	return a == b, nil
}
