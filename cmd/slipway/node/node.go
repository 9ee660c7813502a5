// Package node has the commands that run the agent of a node, and the commands that use
// the agent.
package node

import "github.com/spf13/cobra"

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{agentCommand(), credentialProviderCommand(), mountCommand(), umountCommand(), runCommand(), profileCommand()}
}

// VolumeCommands returns the commands of this package that belong below slipway volume.
func VolumeCommands() []*cobra.Command {
	return []*cobra.Command{volumeMapCommand(), volumeUnmapCommand()}
}
