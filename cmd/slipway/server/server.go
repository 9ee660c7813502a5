// Package server has the commands that run a registry, and the commands that manage the
// data of a running server or of a directory.
package server

import "github.com/spf13/cobra"

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	return []*cobra.Command{serveCommand(), configCommand(), gcCommand(), fsckCommand(), backupCommand(), restoreCommand(), retentionCommand(),
		importCommand(), cacheCommand(), mirrorCommand(), catalogCommand(), rehydrateCommand(), tokenCommand(), activityCommand(), replicateCommand(), webhookCommand()}
}
