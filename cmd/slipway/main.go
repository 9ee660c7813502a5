// Command slipway is a container-image distribution system: a registry, and the
// tools to look after it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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

// exitCode is an error with an exit status of its own.
type exitCode struct {
	code int
	err  error
}

func (e exitCode) Error() string { return e.err.Error() }
func (e exitCode) Unwrap() error { return e.err }

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "slipway",
		Short:         "Container-image distribution: a registry and its tools in one binary",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       longVersion(),
	}
	root.AddCommand(serveCommand(), gcCommand(), fsckCommand(), backupCommand(), restoreCommand(),
		retentionCommand(), importCommand(), convertCommand(), inspectCommand(), exportCommand(), commitCommand(),
		statusCommand(), settleCommand(), cacheCommand(), mirrorCommand(), volumeCommand(), catalogCommand(), dedupCommand(), configCommand(), versionCommand(),
		agentCommand(), mountCommand(), umountCommand(), runCommand(), profileCommand(), traceCommand(), planCommand(), loadCommand())
	root.SetFlagErrorFunc(withHint)
	hintAtHelp(root)
	return root
}

// withHint adds to a usage error where the usage is told.
func withHint(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
}

// hintAtHelp makes wrong arguments of all commands come with a hint.
func hintAtHelp(cmd *cobra.Command) {
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
