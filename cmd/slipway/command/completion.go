package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// completionExamples says where each shell looks for completions.
var completionExamples = map[string]string{
	"completion": "  slipway completion bash > /etc/bash_completion.d/slipway",
	"bash":       "  slipway completion bash > /etc/bash_completion.d/slipway",
	"fish":       "  slipway completion fish > ~/.config/fish/completions/slipway.fish",
	"zsh":        "  slipway completion zsh > /usr/local/share/zsh/site-functions/_slipway",
}

// addCompletion adds the commands that write completions, for the shells that exist on
// Linux.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	cmd, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	cmd.Short = "Print what a shell needs to complete commands, flags and names"
	cmd.Long = `Print a script with which a shell completes commands, flags, and the names of repositories and
tags. The packages install it. bash needs the package bash-completion, and zsh needs compinit.`
	cmd.Example = completionExamples[cmd.Name()]
	for _, c := range cmd.Commands() {
		if c.Example = completionExamples[c.Name()]; c.Example == "" {
			cmd.RemoveCommand(c)
			continue
		}
		c.Short = "Print the completion for " + c.Name()
		c.Long = c.Short + ". Shells that start afterwards read it where the example puts it."
	}
}

// addHelp adds the command that shows help.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	cmd, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	cmd.Use, cmd.Short, cmd.Long = "help [COMMAND]", "Show the help of a command", "Show the help of a command, as COMMAND --help does."
	cmd.Example = "  slipway help trace replay"
}

// nameCompletions lets shells complete the values of flags that have few values.
func nameCompletions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		nameCompletions(c)
		for name, values := range map[string][]string{
			"output": {"text", "json"}, "format": {"text", "json", "html"}, "mode": {"gear", "volume-local", "volume-network"},
			"fs": {"ext4", "erofs", "both"}, "platform": {"linux/amd64", "linux/arm64"},
		} {
			if c.Flags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // a flag that has a completion keeps it
			}
		}
		for _, name := range []string{"config", "ca"} {
			if c.Flags().Lookup(name) != nil {
				_ = c.MarkFlagFilename(name)
			}
		}
		if c.Flags().Lookup("root") != nil {
			_ = c.MarkFlagDirname("root")
		}
	}
}

// CompleteValues lets shells complete the values of a flag. If list is set, the flag takes
// several of them, separated by commas.
func CompleteValues(cmd *cobra.Command, flag string, list bool, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if list {
		complete = func(_ *cobra.Command, _ []string, text string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
			given := text[:strings.LastIndexByte(text, ',')+1]
			for _, v := range values {
				if strings.HasPrefix(v, text[len(given):]) && !slices.Contains(strings.Split(given, ","), v) {
					out = append(out, given+v)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the command has no such flag, or completes it already
	}
}
