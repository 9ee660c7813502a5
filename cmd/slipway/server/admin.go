package server

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry"
	"example.org/slipway/registry/check"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func gcCommand() *cobra.Command {
	var f command.ServerFlags
	var args dataroot.GCArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Delete content that nothing needs any more",
		Example: `  slipway gc --root /var/lib/slipway --dry-run
  slipway gc --config /etc/slipway/config.yml`,
		Long: `Delete content that nothing needs any more. A running server does this by itself while it
serves; if one uses the data directory, the command asks it to do so now.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				p := command.NewProgress("collecting")
				rep, err := a.Collect(cmd.Context(), args, func(r registry.CollectReport) {
					p.Show("%d examined, %d contents, %s", r.Examined, r.Contents, command.Size(r.Bytes))
				})
				p.End()
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { printCollected(cmd.OutOrStdout(), args, rep) })
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.DryRun, "dry-run", false, "only show what would be deleted")
	cmd.Flags().BoolVar(&args.Now, "now", false, "do not wait for the grace period; use it only while nobody pushes")
	cmd.Flags().BoolVar(&args.Untagged, "untagged", false, "also delete manifests without a tag that no other manifest names")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}

func printCollected(w io.Writer, args dataroot.GCArgs, rep registry.CollectReport) {
	verb, least := "deleted", ""
	if rep.AtLeast {
		least = " at least"
	}
	if args.DryRun {
		verb = "would delete" + least
		for _, d := range rep.Digests {
			fmt.Fprintln(w, d)
		}
	}
	fmt.Fprintf(w, "%s %d contents of %s, %d manifests and %d blobs out of repositories, in %s\n",
		verb, rep.Contents, command.Size(rep.Bytes), rep.Manifests, rep.Blobs, rep.Took.Round(1e6))
	if rep.FreedManifests+rep.FreedBlobs+rep.FreedContents > 0 {
		fmt.Fprintf(w, "a grace period after that would follow what then nothing needs:%s %d contents of %s, %d manifests and %d blobs out of repositories\n",
			least, rep.FreedContents, command.Size(rep.FreedBytes), rep.FreedManifests, rep.FreedBlobs)
	}
}

func fsckCommand() *cobra.Command {
	var f command.ServerFlags
	var args dataroot.FsckArgs
	var from string
	var source command.RegistryFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fsck",
		Short: "Verify every digest, link and object; repair on demand",
		Example: `  slipway fsck --root /var/lib/slipway
  slipway fsck --config /etc/slipway/config.yml --quick
  slipway fsck --root /var/lib/slipway --repair
  slipway fsck --root /var/lib/slipway --repair --from /mnt/backup`,
		Long: `Verify every digest, link and object. A server may use the data directory meanwhile.

Exit status 0 means that there are no problems, or that all were repaired; 4 means that
problems remain.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if from != "" && !args.Repair {
				return command.Usagef("--from says where a repair gets what is damaged or missing; add --repair")
			}
			if args.From, err = fsckSource(cmd.Context(), &source, from); err != nil {
				return err
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				p := command.NewProgress("checking")
				rep, err := a.Fsck(cmd.Context(), args, func(r check.Report) {
					p.Share(r.Bytes, r.BytesTotal, "%d of %d contents, %d objects", r.Contents, r.ContentsTotal, r.Objects)
				})
				p.End()
				if err != nil {
					return err
				}
				if err := command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { printFsck(cmd.OutOrStdout(), rep) }); err != nil {
					return err
				}
				if !rep.Clean() {
					return command.ExitWith(4, fsckAdvice(args.Repair, rep))
				}
				return nil
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.Quick, "quick", false, "compare only sizes, do not read contents")
	cmd.Flags().BoolVar(&args.Repair, "repair", false, "repair what can be repaired; damaged contents are set aside so that they can be pushed again")
	cmd.Flags().StringVar(&from, "from", "", "with --repair: first fetch what is damaged or missing from a backup's directory or from a registry, REGISTRY[/REPOSITORY]")
	source.AddTo(cmd.Flags(), "the source", "the source")
	cmd.Flags().BoolVar(&args.Rebuild, "rebuild", false, "first record packs of Gear files that the catalogue lacks, so that a conversion need not make them again")
	cmd.Flags().BoolVar(&args.EmptyQuarantine, "empty-quarantine", false, "first delete what earlier repairs set aside, except the last good copy of a content")
	cmd.Flags().BoolVar(&args.GiveUpMany, "give-up-many", false, "let --repair give up contents as missing, damaged or unknown even if they are more than 1 % of all and more than 10")
	cmd.Flags().BoolVar(&args.AdoptStore, "adopt-store", false, "first accept an object store that lacks this registry's id, such as one that was lost and made anew")
	cmd.Flags().IntVar(&args.Parallel, "parallel", 0, "contents read at once (default 4)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}

// fsckAdvice says what to do about the problems that remain after a check.
func fsckAdvice(repair bool, rep check.Report) error {
	left := func(kinds ...check.Kind) bool {
		return slices.ContainsFunc(kinds, func(k check.Kind) bool { return rep.Counts[k] > rep.Repaired[k] })
	}
	switch {
	case left(check.ProblemCatalog):
		return errors.New("the catalogue is damaged, and nothing repairs that; stop the server, move catalog.db and the files beside it whose names begin so out of the data directory, and restore a backup (slipway restore BACKUP), which keeps the objects that are there")
	case !repair:
		return errors.New("problems remain; slipway fsck --repair repairs what can be repaired")
	case left(check.ProblemIncomplete, check.ProblemManifest):
		return errors.New("problems remain that cannot be repaired here; take what is missing from a backup or another registry (slipway fsck --repair --from SOURCE), push the images named above again, or delete their tags")
	case left(check.ProblemUnreadable):
		return errors.New("contents remain that the store fails to return; look at the disk or the object store, then run slipway fsck --repair again")
	}
	return errors.New("problems remain that are left alone; each is named above")
}

func printFsck(w io.Writer, rep check.Report) {
	for _, pr := range rep.Problems {
		state := ""
		if pr.Repaired {
			state = " (repaired)"
		}
		what := strings.Join(slices.DeleteFunc([]string{pr.Repo, string(pr.Digest), pr.Key, pr.Detail}, func(s string) bool { return s == "" }), " ")
		fmt.Fprintf(w, "%s%s: %s\n", pr.Kind, state, what)
		for _, h := range pr.Hurts {
			fmt.Fprintf(w, "    cannot be pulled: %s\n", h)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(rep.Counts)) {
		fmt.Fprintf(w, "%d %s, %d repaired\n", rep.Counts[kind], kind, rep.Repaired[kind])
	}
	if rep.QuarantinedRemoved > 0 {
		fmt.Fprintf(w, "removed %d contents from quarantine\n", rep.QuarantinedRemoved)
	}
	if rep.RebuiltPacks > 0 {
		fmt.Fprintf(w, "recorded %d packs with %d Gear files; slipway convert --all makes them part of the layers\n", rep.RebuiltPacks, rep.RebuiltFiles)
	}
	if rep.Foreign > 0 {
		fmt.Fprintf(w, "%d objects of %s are unknown to the catalogue and stay, because the links of a Distribution registry lie in the same storage\n", rep.Foreign, command.Size(rep.ForeignBytes))
	}
	if rep.Quarantined > 0 {
		fmt.Fprintf(w, "%d contents of %s are in quarantine; --empty-quarantine removes them\n", rep.Quarantined, command.Size(rep.QuarantinedBytes))
	}
	fmt.Fprintf(w, "checked %d contents of %s, %d manifests, %d objects in %s\n",
		rep.Contents, command.Size(rep.Bytes), rep.Manifests, rep.Objects, rep.Took.Round(1e6))
}

func retentionCommand() *cobra.Command {
	var f command.ServerFlags
	var args dataroot.RetainArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "retention",
		Short: "Apply the retention rules of the configuration",
		Example: `  slipway retention --config /etc/slipway/config.yml --dry-run
  slipway retention --config /etc/slipway/config.yml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Retain(cmd.Context(), args)
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					for _, d := range rep.Decisions {
						verb := "keep"
						if d.Removed {
							verb = "remove"
						}
						fmt.Fprintf(cmd.OutOrStdout(), "%-6s %s:%s  %s\n", verb, d.Repo, d.Tag, d.Reason)
					}
					if rep.Rules == 0 {
						fmt.Fprintln(cmd.OutOrStdout(), "no retention rules are configured, so every tag stays; add them as storage.retention to the file that --config names (see slipway config example)")
						return
					}
					said := "%d tags kept, %d removed, %d manifests removed\n"
					if args.DryRun {
						said = "%d tags would be kept, %d would be removed, and %d manifests would be removed with them\n"
					}
					fmt.Fprintf(cmd.OutOrStdout(), said, rep.Kept, rep.Removed, rep.Manifests)
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.DryRun, "dry-run", false, "only show what would be removed, and why")
	cmd.Flags().BoolVar(&args.Now, "now", false, "also remove content whose existence a client may just have checked; use it only while nobody pushes")
	cmd.Flags().BoolVar(&args.TrustClock, "trust-clock", false, "continue even if the clock is far from the newest push or pull")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}
