package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
)

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  slipway version
  slipway version --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			return command.PrintReport(w, asJSON, command.About(), func() { fmt.Fprintln(w, "slipway", command.LongVersion()) })
		},
	}
	command.AddJSON(cmd, &asJSON)
	return cmd
}
