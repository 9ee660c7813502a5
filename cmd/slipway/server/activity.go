package server

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry/activity"
	"example.org/slipway/serve/admin"
)

func activityCommand() *cobra.Command {
	var f command.ServerFlags
	var filter activity.Filter
	var since, until string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "activity",
		Short: "Show who pushed, deleted, logged in or was refused, from the audit log",
		Example: `  slipway activity --repository 'team/**' --since 7d
  slipway activity --user robot:ci --action push,delete --json
  slipway activity --config /etc/slipway/config.yml --since 2026-01-01 --limit 100000 --json > export.json`,
		Long: `Show who did what, newest first. The events come from the audit log (log.audit.file) and from the
files that log rotation has set aside beside it. Pulls are not among them: they are in the access
log.

Actions are push, tag, delete, login, token (issued by the token service), denied and admin.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if filter.Since, err = parseWhen("--since", since, time.Now()); err != nil {
				return err
			}
			if filter.Until, err = parseWhen("--until", until, time.Now()); err != nil {
				return err
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Activity(cmd.Context(), filter)
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { printActivity(cmd.OutOrStdout(), cmd.ErrOrStderr(), rep) })
			})
		},
	}
	f.Add(cmd, false)
	fl := cmd.Flags()
	fl.StringVar(&filter.User, "user", "", "only of this user, such as alice, robot:ci or oidc:corp:bob")
	fl.StringVar(&filter.Repository, "repository", "", "only in repositories that match this pattern")
	fl.StringSliceVar(&filter.Actions, "action", nil, "only these actions")
	fl.StringVar(&since, "since", "", "only from this time on: a date, an RFC 3339 time, or a time ago such as 7d")
	fl.StringVar(&until, "until", "", "only before this time, written as for --since")
	fl.IntVar(&filter.Limit, "limit", activity.DefaultLimit, fmt.Sprintf("show at most this many events, up to %d", activity.MaxLimit))
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// parseWhen parses a date, a time, or how long before now a time was.
func parseWhen(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	d, err := parseLifetime(s)
	if err != nil || d == 0 {
		return time.Time{}, command.Usagef("%s %s: write a date such as 2026-01-31, an RFC 3339 time, or a time ago such as 7d", flag, s)
	}
	return now.Add(-d), nil
}

func printActivity(w, note io.Writer, rep activity.Report) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range rep.Events {
		who := e.Subject
		if who == "" {
			who = "-"
		}
		what := e.Event
		if e.Event == "admin" || e.Event == "denied" {
			what += " " + e.Action
		}
		target := e.Repo
		if e.Reference != "" && e.Event != "token" {
			target = strings.TrimSpace(target + " " + e.Reference)
		}
		result := e.Outcome
		if e.Reason != "" {
			result += " (" + e.Reason + ")"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Format(time.RFC3339), who, what, target, result, e.Addr)
	}
	_ = tw.Flush() // an error of standard output shows at the end of the command
	if len(rep.Events) == 0 {
		fmt.Fprintln(note, "nothing in the audit log matches")
	}
	if rep.More {
		fmt.Fprintln(note, "there is more; raise --limit, or narrow the time")
	}
	if rep.Unreadable > 0 {
		fmt.Fprintf(note, "%d lines of the audit log cannot be read\n", rep.Unreadable)
	}
}
