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
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  slipway version
  slipway version --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			return printReport(w, asJSON, about(), func() { fmt.Fprintln(w, "slipway", longVersion()) })
		},
	}
	addJSON(cmd, &asJSON)
	return cmd
}

// built tells what the program was built from and for.
type built struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func about() built {
	b := built{Version: version, Commit: commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok && b.Commit == "" {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

// longVersion is the version with what it was built from and for.
func longVersion() string {
	b := about()
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", b.Version, b.Commit, b.Go, b.OS, b.Arch)
}
