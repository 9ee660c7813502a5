package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ExitUsage is the exit status of a command that was used wrongly.
const ExitUsage = 2

// exitCode is an error together with an exit status.
type exitCode struct {
	code int
	err  error
}

// ExitWith gives an exit status to an error.
func ExitWith(code int, err error) error { return exitCode{code, err} }

// ExitStatus returns the exit status of a command that failed.
func ExitStatus(err error) int {
	var code exitCode
	if errors.As(err, &code) {
		return code.code
	}
	return 1
}

// Error implements error.
func (e exitCode) Error() string { return e.err.Error() }

// Unwrap implements what errors.Is and errors.As need.
func (e exitCode) Unwrap() error { return e.err }

// usageError says that a command was used wrongly.
type usageError struct{ error }

// Usagef returns an error that says that a command was used wrongly.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Unwrap implements what errors.Is and errors.As need.
func (e usageError) Unwrap() error { return e.error }

// Finish adds to all commands what they have in common: hints after wrong use, the flag
// --output, and completions.
func Finish(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return WithHint(cmd, suggestFlag(cmd, err)) })
	addCompletion(root)
	addHelp(root)
	hintAtHelp(root)
	root.SetUsageTemplate(usageTemplate(root))
	oneOutputFlag(root)
	nameCompletions(root)
	imageCompletions(root)
}

// suggestFlag adds a suggestion to an error about an unknown flag: the flag that was
// probably meant. That flag differs from what was written only in dashes and case, or
// begins with it.
func suggestFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	plain := func(name string) string { return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name)) }
	word, near := plain(unknown.GetSpecifiedName()), ""
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if name := plain(f.Name); !f.Hidden && (name == word || near == "" && len(word) > 2 && strings.HasPrefix(name, word)) {
			near = f.Name
		}
	})
	if near == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, near)
}

// WithHint adds a hint about help to a usage error, and sets the exit status ExitUsage.
func WithHint(cmd *cobra.Command, err error) error {
	return ExitWith(ExitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
}

// groupsOnly is the annotation of commands that do nothing themselves.
const groupsOnly = "groups only"

// usageTemplate returns cobra's template with a line of usage only for commands that do
// something, and with names in capitals, as in the lines of usage.
func usageTemplate(root *cobra.Command) string {
	return strings.NewReplacer("{{if .Runnable}}", `{{if and .Runnable (not (index .Annotations "`+groupsOnly+`"))}}`,
		"[command]", "COMMAND", "Available Commands:", "Commands:", "Additional Commands:", "Other commands:").Replace(root.UsageTemplate())
}

// hintAtHelp adds a hint to the usage errors of a command and of all commands below it.
func hintAtHelp(cmd *cobra.Command) {
	check, run := cmd.Args, cmd.RunE
	if check == nil && cmd.HasSubCommands() {
		check = cobra.NoArgs
	}
	if !cmd.Runnable() { // it only groups other commands
		cmd.Annotations = map[string]string{groupsOnly: "yes"}
		run = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil || check(cmd, args) == nil {
			return nil
		}
		return WithHint(cmd, wrongArgs(cmd, args))
	}
	if run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			var wrong usageError
			if errors.As(err, &wrong) {
				return WithHint(cmd, err)
			}
			return err
		}
	}
	cmd.SuggestionsMinimumDistance = 2
	for _, c := range cmd.Commands() {
		hintAtHelp(c)
	}
}

// wrongArgs returns an error about the number of arguments, or about a command name that
// does not exist. In the second case it suggests similar names.
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
