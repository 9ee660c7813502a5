package server

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry/backup"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func backupCommand() *cobra.Command {
	var f command.ServerFlags
	var args dataroot.BackupArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backup DIR",
		Short: "Copy the registry into a directory while it serves",
		Example: `  slipway backup --root /var/lib/slipway /mnt/backup
  slipway backup --config /etc/slipway/config.yml /mnt/backup`,
		Long: `Copy the registry, as it is at one moment, into a directory, while it serves. If the directory
has an earlier backup of the same registry, only what is new is copied. The earlier backup
stays whole until the new one is complete. The backup keeps its good copies of contents that
are damaged or missing in the registry.

Exit status 1 means that there is no new backup, or that images in it are incomplete. The
output names these images; everything else is backed up.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) (err error) {
			if args.Dir, err = filepath.Abs(dirs[0]); err != nil {
				return err
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				p := command.NewProgress("copying")
				rep, err := a.Backup(cmd.Context(), args, func(r backup.Report) {
					p.Share(r.Bytes, r.BytesTotal, "%d of %d objects", r.Objects, r.ObjectsTotal)
				})
				p.End()
				if !rep.Done {
					return err
				}
				return errors.Join(command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { printTransfer(cmd.OutOrStdout(), "backed up", rep) }), err)
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.Verify, "verify", false, "also read the contents of the earlier backup, and copy those again that are damaged")
	cmd.Flags().BoolVar(&args.AllowShrink, "allow-shrink", false, "back up even if the registry has far less than the earlier backup")
	cmd.Flags().BoolVar(&args.ReplaceOther, "replace-other", false, "replace the backup of another registry, which is lost then")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func printTransfer(w io.Writer, verb string, rep backup.Report) {
	fmt.Fprintf(w, "%s %d manifests and %d blobs, %s in all: %d contents in the catalogue (%s), %d objects (%s; %d of them copied now, %s) in %s\n",
		verb, rep.Manifests, rep.Blobs, command.Size(rep.InlineBytes+rep.Bytes), rep.Inline, command.Size(rep.InlineBytes),
		rep.Objects, command.Size(rep.Bytes), rep.Copied, command.Size(rep.CopiedBytes), rep.Took.Round(1e6))
	if rep.UnreadPacksTotal > 0 {
		fmt.Fprintf(w, "%d packs of Gear files could not be read and are left out, the first is %s; look at the disk, and run slipway fsck --repair\n", rep.UnreadPacksTotal, rep.UnreadPacks[0])
	}
	if rep.Kept > 0 {
		fmt.Fprintf(w, "%d contents are damaged or missing in the registry, and the backup keeps its good copies; slipway restore DIR brings them back\n", rep.Kept)
	}
	for _, image := range rep.Incomplete {
		fmt.Fprintf(w, "incomplete: %s\n", image)
	}
}
