package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config/yamlfile"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/mirrors"
)

func mirrorListCommand() *cobra.Command {
	var f mirrorFlags
	var list mirrors.ListArgs
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"}, // its name in 0.1
		Short:   "List the mirrored images",
		Example: `  slipway mirror ls --config /etc/slipway/config.yml
  slipway mirror ls --config /etc/slipway/config.yml --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, false, func(a *admin.Admin) (any, func(io.Writer), error) {
				images, err := allMirrored(cmd.Context(), a, list)
				if err != nil {
					return nil, nil, err
				}
				return images, func(w io.Writer) { printMirrored(w, images, time.Now()) }, nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&list.Pattern, "pattern", "", "only repositories that match, as in access rules: docker.io/library/*, quay.io/**")
	cmd.Flags().BoolVar(&list.LeastUsed, "least-used", false, "begin with the images that were used longest ago")
	return cmd
}

func allMirrored(ctx context.Context, a *admin.Admin, list mirrors.ListArgs) ([]mirrors.Image, error) {
	images := []mirrors.Image{}
	for {
		page, err := a.ListMirrors(ctx, list)
		if err != nil {
			return nil, err
		}
		images = append(images, page.Images...)
		if list.After = page.Next; list.After == "" {
			return images, nil
		}
	}
}

func printMirrored(w io.Writer, images []mirrors.Image, now time.Time) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var bytes int64
	fmt.Fprintln(tw, "IMAGE\tDIGEST\tSIZE\tSTORED\tPULLED\tMISSING")
	for _, i := range images {
		bytes += i.Size
		name := i.Repository
		if len(i.Tags) > 0 {
			name += ":" + strings.Join(i.Tags, ",")
		}
		pulled := "never"
		if !i.Pulled.IsZero() {
			pulled = ago(now.Sub(i.Pulled))
		}
		missing := ""
		if i.Missing > 0 {
			missing = fmt.Sprint(i.Missing)
		}
		fmt.Fprintf(tw, "%s\t%.19s\t%s\t%s\t%s\t%s\n", name, i.Digest, command.Size(i.Size), ago(now.Sub(i.Stored)), pulled, missing)
	}
	_ = tw.Flush() // ignored as for Fprintf to a terminal
	fmt.Fprintf(w, "%d images of %s; what they share is counted for each\n", len(images), command.Size(bytes))
}

// ago formats how long ago something was.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "now"
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	}
	return fmt.Sprintf("%d days ago", d/(24*time.Hour))
}

// span is a flag for a duration that is written as in the configuration, with days.
type span struct{ d *time.Duration }

// Set implements pflag.Value.
func (s span) Set(text string) error {
	d, err := yamlfile.ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("must not be negative")
	}
	if err == nil {
		*s.d = d
	}
	return err
}

// String implements pflag.Value.
func (s span) String() string {
	if s.d == nil || *s.d == 0 {
		return ""
	}
	return s.d.String()
}

// Type implements pflag.Value.
func (span) Type() string { return "duration" }

func mirrorPruneCommand() *cobra.Command {
	var f mirrorFlags
	var prune mirrors.PruneArgs
	cmd := &cobra.Command{
		Use:   "prune {--older-than D | --not-pulled-since D | --pattern P}",
		Short: "Remove mirrored images; they are fetched again when a client requests them",
		Long: `Remove mirrored images, and at once the content that nothing else needs. An image is removed
if all of the given conditions hold. Content that other images or repositories share stays.`,
		Example: `  slipway mirror prune --not-pulled-since 30d --dry-run
  slipway mirror prune --pattern 'quay.io/old/**'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prune.OlderThan <= 0 && prune.NotPulledSince <= 0 && prune.Pattern == "" {
				return command.Usagef("say what to remove: --older-than, --not-pulled-since or --pattern")
			}
			return f.run(cmd, false, func(a *admin.Admin) (any, func(io.Writer), error) {
				rep, err := a.PruneMirrors(cmd.Context(), prune)
				if err != nil {
					return nil, nil, err
				}
				return rep, func(w io.Writer) { printPruned(w, prune.DryRun, rep) }, nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().Var(span{&prune.OlderThan}, "older-than", "images that were stored longer ago than this, such as 90d")
	cmd.Flags().Var(span{&prune.NotPulledSince}, "not-pulled-since", "images that nobody has pulled for this long, such as 30d")
	cmd.Flags().StringVar(&prune.Pattern, "pattern", "", "images of repositories that match, as in access rules: docker.io/library/*, quay.io/**")
	cmd.Flags().BoolVar(&prune.DryRun, "dry-run", false, "only show what would be removed")
	return cmd
}

func printPruned(w io.Writer, dryRun bool, rep mirrors.PruneReport) {
	verb := "removed"
	if dryRun {
		verb = "would remove"
	}
	for _, i := range rep.Images {
		name := i.Repository + "@" + string(i.Digest)
		if len(i.Tags) > 0 {
			name = i.Repository + ":" + strings.Join(i.Tags, ",")
		}
		fmt.Fprintln(w, verb, name)
	}
	fmt.Fprintf(w, "%s %d images and %s that nothing else has, in %s\n", verb, len(rep.Images), command.Size(rep.Bytes), rep.Took.Round(1e6))
}
