// Command slipway is a container-image distribution system: a registry, and the
// tools to look after it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	agent.Version = version
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
	fmt.Fprintln(os.Stderr, "slipway:", err)
	var code exitCode
	if errors.As(err, &code) {
		os.Exit(code.code)
	}
	os.Exit(1)
}

// exitUsage is the exit status of a command that was called wrongly.
const exitUsage = 2

// exitCode is an error with an exit status of its own.
type exitCode struct {
	code int
	err  error
}

func (e exitCode) Error() string { return e.err.Error() }
func (e exitCode) Unwrap() error { return e.err }

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "slipway",
		Short: "Container-image distribution: a registry and its tools in one binary",
		Long: `Container-image distribution: a registry, a node agent, and the tools to look after them and
to measure them, in one binary.

The exit status is 0 when all was done, 1 when something failed, and 2 when the command was
called wrongly. 3 and 4 are told apart by commands that check something: 3 is wrong content
(load) or a gate that was not met (trace replay, trace compare); 4 is problems that remain
(fsck), operations that failed (load), or a run that is not valid (trace replay). slipway run
and slipway profile record end with the status of the container's command.`,
		Example: `  slipway serve
  slipway convert 127.0.0.1:5000/team/app:1
  slipway run 127.0.0.1:5000/team/app:1`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       longVersion(),
	}
	root.AddCommand(serveCommand(), gcCommand(), fsckCommand(), backupCommand(), restoreCommand(),
		retentionCommand(), importCommand(), convertCommand(), inspectCommand(), exportCommand(), commitCommand(),
		statusCommand(), settleCommand(), cacheCommand(), mirrorCommand(), volumeCommand(), catalogCommand(), dedupCommand(), configCommand(), versionCommand(),
		agentCommand(), mountCommand(), umountCommand(), runCommand(), profileCommand(), traceCommand(), planCommand(), loadCommand(), manCommand())
	root.SetFlagErrorFunc(withHint)
	hintAtHelp(root)
	oneOutputFlag(root)
	nameCompletions(root)
	return root
}

// withHint adds to a usage error where the usage is told, and what it does to the exit
// status.
func withHint(cmd *cobra.Command, err error) error {
	return exitCode{exitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
}

// hintAtHelp makes wrong arguments of all commands come with a hint.
func hintAtHelp(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		onlyCommands(cmd)
	}
	for _, c := range cmd.Commands() {
		hintAtHelp(c)
		check := c.Args
		if check == nil {
			continue
		}
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return withHint(cmd, err)
			}
			return nil
		}
	}
}

// onlyCommands has a command that is only a group of others refuse what is none of them,
// and name those that were perhaps meant. Without anything it shows its help.
func onlyCommands(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
		}
		return withHint(cmd, err)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}
