// Package image has the commands that work on images in a registry: as files and as
// volumes.
package image

import "github.com/spf13/cobra"

// Commands returns the commands of this package. onNode are commands of a node that belong
// below slipway volume.
func Commands(onNode ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{convertCommand(), statusCommand(), settleCommand(), inspectCommand(), exportCommand(), commitCommand(), pushModelCommand(),
		volumeCommand(onNode), dedupCommand(), recipeCommand()}
}
