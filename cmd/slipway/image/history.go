package image

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func historyCommand() *cobra.Command {
	var f command.ImageFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "history IMAGE",
		Short: "List what a tag pointed at, when, and who moved it",
		Long: `List the changes of a tag, the last one first: since when it points at which digest, what
changed it, and for whom. A registry keeps the last 100 changes, and forgets a tag 90 days after
it was deleted. To go back, give the digest the tag again: slipway tag IMAGE@DIGEST TAG, or slipway
undelete if the image was deleted meanwhile.`,
		Example: `  slipway tag history 127.0.0.1:5000/team/app:stable
  slipway tag history --json registry.example.com/team/app:latest`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.Open(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			if oci.IsDigest(r.Ref) {
				return command.Usagef("%s is a digest, which never changes; name a tag", args[0])
			}
			list, err := client.HistoryOf(r.Reg, r.Repo).Tag(cmd.Context(), r.Ref)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			rep := map[string]any{"name": r.Repo, "tag": r.Ref, "changes": list}
			return command.PrintReport(w, asJSON, rep, func() { printHistory(w, list) })
		},
	}
	f.AddReach(cmd)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func printHistory(w io.Writer, list []oci.TagChange) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SINCE\tDIGEST\tIMAGE\tBY")
	for _, c := range list {
		digest, state := string(c.Digest), c.State
		if c.Digest == "" {
			digest, state = "none", "tag deleted"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.At.UTC().Format(time.RFC3339), digest, state, origin(c.Cause, c.By))
	}
	_ = t.Flush() // ignored, as for any other write to standard output
}

// origin says what caused a change, and which user made it.
func origin(cause, by string) string {
	if by == "" {
		return cmp.Or(cause, "unknown")
	}
	return command.Printable(by) + " (" + cause + ")"
}

func undeleteCommand() *cobra.Command {
	var f command.RegistryFlags
	var tag string
	var asJSON, dry bool
	cmd := &cobra.Command{
		Use:   "undelete REGISTRY/REPOSITORY[@DIGEST]",
		Short: "List deleted images of a repository, or restore one",
		Long: `Without a digest, list the images and indexes that were deleted from a repository and can still be
restored. That is certain until the time in the column UNTIL, and possible after it until the
registry has collected them. With a digest, restore that one with the tags that it had, except
those that point at something else now. With --tag, set only that tag, whatever it points at now.

What an index names comes back with it, and so do the signatures and other manifests that retention
removed along with an image.`,
		Example: `  slipway undelete 127.0.0.1:5000/team/app
  slipway undelete registry.example.com/team/app@sha256:...`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			repo, digest, ok := strings.Cut(args[0], "@")
			reg, images, err := f.Open(args[0])
			if err != nil {
				return err
			}
			defer reg.Close()
			if len(images) != 1 || !ok && len(images[0].References) > 0 || ok && !oci.ValidDigest(oci.Digest(digest)) {
				return command.Usagef("%s is neither a repository nor an image by its digest; write REGISTRY/REPOSITORY or REGISTRY/REPOSITORY@DIGEST", args[0])
			}
			if !ok && (tag != "" || dry) {
				return command.Usagef("name what to restore: %s@DIGEST", repo)
			}
			name := images[0].From
			list, err := client.HistoryOf(reg, name).Deleted(cmd.Context())
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if !ok {
				rep := map[string]any{"name": name, "manifests": append([]oci.DeletedManifest{}, list...)}
				return command.PrintReport(w, asJSON, rep, func() { printDeleted(w, list) })
			}
			if dry {
				return wouldRestore(w, asJSON, name, oci.Digest(digest), tag, list)
			}
			tags, err := client.HistoryOf(reg, name).Restore(cmd.Context(), oci.Digest(digest), tag)
			if err != nil {
				return err
			}
			return printRestored(w, asJSON, "restored", name, digest, tags)
		},
	}
	f.AddTo(cmd.Flags(), "the registry", "it")
	command.AddJSON(cmd, &asJSON)
	cmd.Flags().StringVar(&tag, "tag", "", "set only this tag to the image")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be restored, and restore nothing")
	return cmd
}

func printDeleted(w io.Writer, list []oci.DeletedManifest) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing that was deleted can be restored")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DELETED\tUNTIL\tDIGEST\tTAGS\tBY")
	for _, d := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", d.At.UTC().Format(time.RFC3339), d.Until.UTC().Format(time.RFC3339), d.Digest,
			command.Printable(cmp.Or(strings.Join(d.Tags, ","), "none")), origin(d.Cause, d.By))
	}
	_ = t.Flush() // ignored, as for any other write to standard output
}

// wouldRestore says what a restoration would do.
func wouldRestore(w io.Writer, asJSON bool, repo string, d oci.Digest, tag string, list []oci.DeletedManifest) error {
	for _, m := range list {
		if m.Digest == d {
			tags := m.Tags
			if tag != "" {
				tags = []string{tag}
			}
			return printRestored(w, asJSON, "would_restore", repo, string(d), tags)
		}
	}
	return fmt.Errorf("%s of %s is not among what can be restored", d, repo)
}

func printRestored(w io.Writer, asJSON bool, how, repo, digest string, tags []string) error {
	rep := map[string]any{"name": repo, "digest": digest, "tags": append([]string{}, tags...), "restored": how == "restored"}
	return command.PrintReport(w, asJSON, rep, func() {
		fmt.Fprintf(w, "%s %s of %s, with the tags: %s\n", strings.ReplaceAll(how, "_", " "), digest, repo, command.Printable(cmp.Or(strings.Join(tags, ", "), "none")))
	})
}
