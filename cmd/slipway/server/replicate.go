package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry/replication"
	"example.org/slipway/serve/admin"
)

func replicateCommand() *cobra.Command {
	var f command.ServerFlags
	var args replication.Args
	var status, asJSON bool
	cmd := &cobra.Command{
		Use:   "replicate [--dry-run] [RULE...]",
		Short: "Copy images to and from other registries, by the rules of the configuration",
		Example: `  slipway replicate --dry-run
  slipway replicate to-frankfurt
  slipway replicate --status --config /etc/slipway/config.yml`,
		Long: `Run the named replication rules, or all of them: compare both sides, and copy what differs. If a
server uses the data directory, the server does the run. What was copied is not copied again, so
if a run breaks off, repeat it.

--status shows what each rule did last, what waits and what fails.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, rules []string) error {
			if status && (args.DryRun || args.DeleteMany) {
				return command.Usagef("--status changes nothing; use it without --dry-run and --delete-many")
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				list, err := a.Replication(cmd.Context())
				if err != nil {
					return err
				}
				if list, err = pickRules(list, rules); err != nil {
					return err
				}
				if status {
					return command.PrintReport(cmd.OutOrStdout(), asJSON, list, func() { printReplication(cmd.OutOrStdout(), list) })
				}
				return replicateAll(cmd, a, list, args, asJSON)
			})
		},
	}
	f.Add(cmd, false)
	fl := cmd.Flags()
	fl.BoolVar(&args.DryRun, "dry-run", false, "only show what would be copied and deleted")
	fl.BoolVar(&args.DeleteMany, "delete-many", false, "delete here what the source has lost, even if that is more than half of the tags")
	fl.BoolVar(&status, "status", false, "show the state of the rules, and run none")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// pickRules returns the named rules, or all if none is named.
func pickRules(list []replication.Status, names []string) (out []replication.Status, err error) {
	if len(list) == 0 {
		return nil, errors.New("nothing is replicated here: the section replication of the configuration has no rules")
	}
	if len(names) == 0 {
		return list, nil
	}
	var known []string
	byName := map[string]replication.Status{}
	for _, s := range list {
		known = append(known, s.Rule)
		byName[s.Rule] = s
	}
	for _, name := range names {
		s, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("there is no rule %q; the configuration has %s", name, strings.Join(known, ", "))
		}
		out = append(out, s)
	}
	return out, nil
}

// replicateAll does a run of each rule. A rule that fails does not keep it from the others.
func replicateAll(cmd *cobra.Command, a *admin.Admin, list []replication.Status, args replication.Args, asJSON bool) error {
	w := cmd.OutOrStdout()
	reports := []replication.Report{}
	var errs []error
	for _, s := range list {
		args.Rule = s.Rule
		rep, err := replicateRule(cmd.Context(), a, args)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Rule, err))
		}
		rep.Rule = s.Rule
		reports = append(reports, rep)
		if !asJSON {
			printReplicated(w, &rep)
		}
	}
	return errors.Join(append(errs, command.PrintReport(w, asJSON, reports, func() {}))...)
}

func replicateRule(ctx context.Context, a *admin.Admin, args replication.Args) (replication.Report, error) {
	p := command.NewProgress("replicating " + args.Rule)
	defer p.End()
	return a.Replicate(ctx, args, func(rep replication.Report) {
		p.Show("%s; %d images copied, %d were there, %s", cmp.Or(rep.Doing, "looking"), rep.Images, rep.Present, command.Size(rep.Bytes))
	})
}

func printReplicated(w io.Writer, rep *replication.Report) {
	for _, c := range rep.Changes {
		sep := ":"
		if strings.Contains(c.Reference, ":") {
			sep = "@"
		}
		fmt.Fprintf(w, "would %s %s%s%s to %s (%s)\n", c.Action, c.Repository, sep, c.Reference, c.To, c.Reason)
	}
	for _, e := range rep.Errors {
		fmt.Fprintf(w, "failed: %s\n", command.Printable(e))
	}
	if rep.DryRun {
		fmt.Fprintf(w, "%s: would copy %d images and delete %d; %d are there already%s, in %d repositories\n", rep.Rule, rep.Images, rep.Deleted, rep.Present, newer(rep.Newer), rep.Repositories)
		return
	}
	fmt.Fprintf(w, "%s: copied %d images (%d manifests and %d blobs, %s), deleted %d, %d failed; %d were there already%s, in %d repositories\n",
		rep.Rule, rep.Images, rep.Manifests, rep.Blobs, command.Size(rep.Bytes), rep.Deleted, rep.Failed, rep.Present, newer(rep.Newer), rep.Repositories)
}

// newer says how many tags the destination has newer.
func newer(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", and %d are newer there", n)
}

// held says how many of what waits have failed.
func held(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d failed and will be tried again", n)
}

func printReplication(w io.Writer, list []replication.Status) {
	when := func(t *time.Time) string {
		if t == nil {
			return "never"
		}
		return t.Local().Format(time.RFC3339)
	}
	for _, s := range list {
		arrow := "to"
		if s.Direction == "pull" {
			arrow = "from"
		}
		fmt.Fprintf(w, "%s, %s %s: %s\n", s.Rule, arrow, s.Remote, s.State)
		if s.Run != nil {
			fmt.Fprintf(w, "  now: %s; %d images copied, %d were there\n", cmp.Or(s.Run.Doing, "looking"), s.Run.Images, s.Run.Present)
		}
		fmt.Fprintf(w, "  last run: %s; it copied %d images, deleted %d, and %d failed%s; last without a failure: %s\n",
			when(s.Ended), s.Last.Images, s.Last.Deleted, s.Last.Failed, newer(s.Last.Newer), when(s.Succeeded))
		if s.Next != nil {
			fmt.Fprintf(w, "  next run: %s\n", when(s.Next))
		}
		if s.Waiting > 0 || s.OnPush {
			fmt.Fprintf(w, "  waiting: %d pushes and deletions%s\n", s.Waiting, held(s.Held))
		}
		if s.Failures > 0 {
			retry := "each push and deletion is tried again by itself"
			if s.RetryAt != nil {
				retry = "it is tried again at " + when(s.RetryAt)
			}
			fmt.Fprintf(w, "  failed %d times in a row; %s\n", s.Failures, retry)
		}
		for _, e := range s.Errors {
			fmt.Fprintf(w, "    %s\n", command.Printable(e))
		}
	}
}
