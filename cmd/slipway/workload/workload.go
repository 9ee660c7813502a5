// Package workload has the commands that measure registries, and those that plan and try
// them out with traces.
package workload

import "github.com/spf13/cobra"

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{traceCommand(), planCommand(), loadCommand()}
}
