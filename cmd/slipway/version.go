package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (make build), and commit where the build is told nothing
// of the repository (make release).
var version, commit = "dev", ""

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  slipway version`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "slipway", longVersion())
			return err
		},
	}
}

// longVersion is the version with what it was built from and for.
func longVersion() string {
	from := commit
	if bi, ok := debug.ReadBuildInfo(); ok && from == "" {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				from = s.Value
			}
		}
	}
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", version, cmp.Or(from, "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
