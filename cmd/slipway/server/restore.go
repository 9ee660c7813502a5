package server

import (
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
	"example.org/slipway/registry/backup"
	"example.org/slipway/serve/admin"
)

func restoreCommand() *cobra.Command {
	var f command.ServerFlags
	var damaged, quick, asJSON bool
	cmd := &cobra.Command{
		Use:     "restore BACKUP",
		Short:   "Restore a backup into an empty data directory, or merge it into a running registry",
		Example: `  slipway restore --root /var/lib/slipway /mnt/backup`,
		Long: `Restore a backup. In an empty data directory, everything becomes as it was. If the data
directory holds something already, the backup's images are added, and tags that both have are
set to what the backup says; a server may use the directory meanwhile. Contents that the
directory should have are read, and replaced if they are damaged or missing.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			cfg, err := f.Load()
			if err != nil {
				return err
			}
			return restore(cmd, cfg, dir, admin.RestoreOptions{AllowDamaged: damaged, Quick: quick}, asJSON)
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&damaged, "allow-damaged", false, "restore as much as possible of a damaged or incomplete backup; run fsck --repair afterwards")
	cmd.Flags().BoolVar(&quick, "quick", false, "compare only the sizes of contents that exist already, do not read them")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func restore(cmd *cobra.Command, cfg *config.Config, dir string, o admin.RestoreOptions, asJSON bool) error {
	restoring, copying := command.NewProgress("restoring"), command.NewProgress("copying")
	o.Progress = func(r backup.Report) {
		restoring.Share(r.Bytes, r.BytesTotal, "%d of %d objects", r.Objects, r.ObjectsTotal)
	}
	o.MergeProgress = showCopied(copying)
	rep, err := admin.Restore(cmd.Context(), cfg, dir, o)
	restoring.End()
	copying.End()
	w := cmd.OutOrStdout()
	switch {
	case rep.Merged && (err == nil || rep.Copied.Failed > 0):
		copied := copyReportOf("", rep.Copied)
		return errors.Join(command.PrintReport(w, asJSON, restoreReport{Merged: true, Copied: &copied}, func() { printCopied(w, rep.Copied) }), err)
	case err == nil:
		return command.PrintReport(w, asJSON, restoreReport{Restored: &rep.Restored}, func() { printTransfer(w, "restored", rep.Restored) })
	}
	return err
}
