package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/gear/recipes"
	"example.org/slipway/serve"
)

func rehydrateCommand() *cobra.Command {
	var f configFlags
	var args serve.RehydrateArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rehydrate {--all | IMAGE...}",
		Short: "Store layers again that are kept as recipes only",
		Example: `  slipway rehydrate --root /var/lib/slipway team/app:1
  slipway rehydrate --config /etc/slipway/config.yml --all`,
		Long: `Rebuild layers that were dropped (storage.rebuild), compare their digests, store them again and
give up their recipes. Pulls go on meanwhile. With --all nothing is left that a slipway without
recipes cannot read: it is needed before a downgrade, and before anything else than slipway uses
the data directory.`,
		RunE: func(cmd *cobra.Command, images []string) error {
			if args.All == (len(images) > 0) {
				return usagef("name images, or give --all")
			}
			args.Images = images
			return withAdmin(cmd, &f, false, func(a *serve.Admin) error {
				rep, err := a.Rehydrate(cmd.Context(), args, nil)
				if err != nil && rep.Layers == 0 {
					return err
				}
				printErr := printReport(cmd.OutOrStdout(), asJSON, rep, func() {
					fmt.Fprintf(cmd.OutOrStdout(), "%d layers of %s are stored again\n", rep.Layers, size(rep.Bytes))
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
	f.add(cmd, false)
	cmd.Flags().BoolVar(&args.All, "all", false, "all layers")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

// printRecipeStatus prints which layers are dropped, if any are or soon will be.
func printRecipeStatus(cmd *cobra.Command, st *recipes.Status) {
	if st.Layers+st.Waiting+st.Refused == 0 {
		return
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%d layers of %s are dropped; their recipes take %s\n", st.Layers, size(st.Bytes), size(st.RecipeBytes))
	fmt.Fprintf(w, "%d layers of %s have a recipe and wait to be dropped, %d of %s stay as they are\n",
		st.Waiting, size(st.WaitingBytes), st.Refused, size(st.RefusedBytes))
}
