// Package workload has the commands that measure registries, and the commands that use
// traces to plan and test registries.
package workload

import "github.com/spf13/cobra"

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{traceCommand(), planCommand(), loadCommand()}
}
