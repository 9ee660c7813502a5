// Package image has the commands that work on images in a registry: on images as files
// and on images as volumes.
package image

import "github.com/spf13/cobra"

// Commands returns the commands of this package. onNode are a node's commands that belong
// below slipway volume.
func Commands(onNode ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{listCommand(), tagsCommand(), tagCommand(), removeCommand(), undeleteCommand(), loginCommand(), logoutCommand(),
		convertCommand(), statusCommand(), settleCommand(), inspectCommand(), exportCommand(), commitCommand(), pushModelCommand(),
		volumeCommand(onNode), dedupCommand(), recipeCommand(), warmCommand()}
}
