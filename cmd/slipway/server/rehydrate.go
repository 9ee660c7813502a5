package server

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func rehydrateCommand() *cobra.Command {
	var f command.ServerFlags
	var args dataroot.RehydrateArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rehydrate {--all | IMAGE...}",
		Short: "Store layers again of which only recipes are kept",
		Example: `  slipway rehydrate --root /var/lib/slipway team/app:1
  slipway rehydrate --config /etc/slipway/config.yml --all`,
		Long: `Rebuild layers that were dropped (storage.rebuild), compare their digests, store them again
and remove their recipes. Pulls continue meanwhile. After a run with --all, the data directory
has no recipes any more. Do that before a downgrade to a version that does not know them, and
before any other program uses the data directory.`,
		RunE: func(cmd *cobra.Command, images []string) error {
			if args.All == (len(images) > 0) {
				return command.Usagef("name images, or give --all")
			}
			args.Images = images
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Rehydrate(cmd.Context(), args, nil)
				if err != nil && rep.Layers == 0 {
					return err
				}
				printErr := command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					fmt.Fprintf(cmd.OutOrStdout(), "%d layers of %s are stored again\n", rep.Layers, command.Size(rep.Bytes))
					for _, d := range rep.Left {
						fmt.Fprintf(cmd.OutOrStdout(), "left: %s\n", d)
					}
				})
				if err == nil {
					err = printErr
				}
				return err
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.All, "all", false, "store all dropped layers again")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}
