// Command slipway is a container-image distribution system: a registry, and the tools to
// manage it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/cmd/slipway/image"
	"example.org/slipway/cmd/slipway/node"
	"example.org/slipway/cmd/slipway/server"
	"example.org/slipway/cmd/slipway/workload"
	"example.org/slipway/internal/systemd"
	"example.org/slipway/oci/client/wrongserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	agent.Version = command.Version
	if systemd.ToJournal() { // for what is logged before a configuration is read
		slog.SetDefault(slog.New(command.LogHandler(os.Stderr, false, nil)))
	}
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := rootCommand().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	if err == nil {
		return
	}
	if interrupted && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintln(os.Stderr, systemd.Failure(fmt.Sprintf("slipway: %v%s", err, wrongserver.Advice(err))))
	os.Exit(command.ExitStatus(err))
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "slipway",
		Short: "Container-image distribution: a registry and its tools in one binary",
		Long: `Container-image distribution in one binary: a registry, a node agent, and the tools to manage
and measure them.

The exit status is 0 when everything was done, 1 when something failed, and 2 when the command
line was wrong. Commands that check something have two more. Status 3 means wrong content
(load) or a gate that was not met (trace replay, trace compare). Status 4 means problems that
remain (fsck), operations that failed (load), or a run that is not valid (trace replay).
slipway run and slipway profile record end with the status of the container's command.`,
		Example: `  slipway serve
  slipway convert 127.0.0.1:5000/team/app:1
  slipway run 127.0.0.1:5000/team/app:1`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       command.LongVersion(),
	}
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"registry", "Run a registry and look after it:", server.Commands()},
		{"image", "Images in a registry:", image.Commands(node.VolumeCommands()...)},
		{"node", "On a node:", node.Commands()},
		{"workload", "Measure and plan:", workload.Commands()},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
		}
		root.AddCommand(g.commands...)
	}
	root.AddCommand(versionCommand(), manCommand())
	command.Finish(root)
	return root
}
