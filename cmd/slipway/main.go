// Command slipway is a container-image distribution system: a registry, and the
// tools to look after it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
	"example.org/slipway/internal/systemd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	agent.Version = version
	if systemd.ToJournal() { // what is logged before a configuration is read
		slog.SetDefault(slog.New(logHandler(os.Stderr, false, nil)))
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
	fmt.Fprintln(os.Stderr, systemd.Failure(fmt.Sprintf("slipway: %v%s", err, wayOut(err))))
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
		retentionCommand(), importCommand(), convertCommand(), inspectCommand(), exportCommand(), commitCommand(), pushModelCommand(),
		statusCommand(), settleCommand(), cacheCommand(), mirrorCommand(), volumeCommand(), catalogCommand(), dedupCommand(), recipeCommand(), configCommand(), versionCommand(),
		agentCommand(), credentialProviderCommand(), mountCommand(), umountCommand(), runCommand(), profileCommand(), traceCommand(), planCommand(), loadCommand(), manCommand())
	root.SetFlagErrorFunc(withHint)
	addCompletion(root)
	hintAtHelp(root)
	oneOutputFlag(root)
	nameCompletions(root)
	return root
}

// usageError tells that a command was called wrongly.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Unwrap implements what errors.Is and errors.As need.
func (e usageError) Unwrap() error { return e.error }

// withHint adds to a usage error where the usage is told, and what it does to the exit
// status.
func withHint(cmd *cobra.Command, err error) error {
	return exitCode{exitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
}

// hintAtHelp makes wrong use of a command, and of those below it, come with a hint.
func hintAtHelp(cmd *cobra.Command) {
	check, run := cmd.Args, cmd.RunE
	if check == nil && cmd.HasSubCommands() {
		check = cobra.NoArgs
	}
	if !cmd.Runnable() { // only a group of others
		run = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil || check(cmd, args) == nil {
			return nil
		}
		return withHint(cmd, wrongArgs(cmd, args))
	}
	if run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			var wrong usageError
			if errors.As(err, &wrong) {
				return withHint(cmd, err)
			}
			return err
		}
	}
	cmd.SuggestionsMinimumDistance = 2
	for _, c := range cmd.Commands() {
		hintAtHelp(c)
	}
}

// wrongArgs tells what is wrong with the number of arguments, or with the name of a command
// that there is not; of that, those that were perhaps meant.
func wrongArgs(cmd *cobra.Command, args []string) error {
	if !cmd.HasSubCommands() {
		if cmd.Args != nil && !strings.Contains(cmd.Use, " ") {
			return fmt.Errorf("%s takes no arguments, and %q is one", cmd.CommandPath(), args[0])
		}
		return fmt.Errorf("wrong number of arguments, %d: it is %s %s", len(args), cmd.Parent().CommandPath(), cmd.Use)
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(near, " or "))
	}
	return err
}

// completionExamples are where shells look for what completes commands.
var completionExamples = map[string]string{
	"completion": "  slipway completion bash > /etc/bash_completion.d/slipway",
	"bash":       "  slipway completion bash > /etc/bash_completion.d/slipway",
	"fish":       "  slipway completion fish > ~/.config/fish/completions/slipway.fish",
	"zsh":        "  slipway completion zsh > /usr/local/share/zsh/site-functions/_slipway",
}

// addCompletion adds the commands that write completions, for the shells there are on Linux.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	cmd.Example = completionExamples[cmd.Name()]
	for _, c := range cmd.Commands() {
		if c.Example = completionExamples[c.Name()]; c.Example == "" {
			cmd.RemoveCommand(c)
		}
	}
}
