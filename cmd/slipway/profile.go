package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func profileCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "profile", Short: "Start-up profiles: which files a container opens first"}
	cmd.AddCommand(profileShowCommand(), profileDropCommand(), profileRecordCommand())
	return cmd
}

func profileShowCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "show {IMAGE | CONTAINER}",
		Short: "List the files of an image's profile, in the order in which they are opened",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			p, err := c.Profile(cmd.Context(), args[0])
			if err != nil {
				return withAgentHint(err)
			}
			return printReport(cmd.OutOrStdout(), f.json, p, func() {
				for i := range p.Files {
					fmt.Fprintf(cmd.OutOrStdout(), "%10s  /%s\n", size(p.Files[i].Size), p.Files[i].Path)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%d files of %s\n", len(p.Files), size(p.Bytes))
			})
		},
	}
	f.add(cmd)
	return cmd
}

func profileDropCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "drop {IMAGE | CONTAINER}",
		Short: "Forget an image's profile on this node; the registry keeps its own",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			return withAgentHint(c.DropProfile(cmd.Context(), args[0]))
		},
	}
	f.add(cmd)
	return cmd
}

func profileRecordCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "record IMAGE [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command in a container of an image and report what it opens to the registry",
		Long: `Run a command as slipway run does, and when it ends report to the registry which files it
opened, in their order. Nodes fetch these before they start a container of the image.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runContainer(cmd, &f, args[0], args[1:]) },
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.runtime, "runtime", "runc", "program that runs containers")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE for its environment, may be repeated")
	return cmd
}
