package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addJSON adds the flag of a command that can print its report as JSON.
func addJSON(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
}

// oneOutputFlag gives the flag --output to every command that answers in a form a
// machine reads and calls the flag for it otherwise.
func oneOutputFlag(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		oneOutputFlag(c)
		fl := c.Flags()
		if fl.Lookup("output") != nil {
			continue
		}
		if f := fl.Lookup("format"); f != nil {
			fl.Var(&formatValue{f.Value}, "output", "the same as --format")
		} else if f := fl.Lookup("json"); f != nil {
			fl.Var(&jsonValue{f.Value}, "output", "form of the answer: text or json, which is --json")
		}
	}
}

// formatValue is another name of a flag.
type formatValue struct{ pflag.Value }

// jsonValue is a flag text|json that is the boolean flag --json.
type jsonValue struct{ json pflag.Value }

// String implements pflag.Value.
func (v *jsonValue) String() string {
	if v.json != nil && v.json.String() == "true" {
		return "json"
	}
	return "text"
}

// Set implements pflag.Value.
func (v *jsonValue) Set(s string) error {
	switch s {
	case "text":
		return v.json.Set("false")
	case "json":
		return v.json.Set("true")
	}
	return fmt.Errorf("it is text or json")
}

// Type implements pflag.Value.
func (v *jsonValue) Type() string { return "string" }

// nameCompletions lets shells complete the values of flags that have few.
func nameCompletions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		nameCompletions(c)
		for name, values := range map[string][]string{
			"output": {"text", "json"}, "format": {"text", "json", "html"}, "mode": {"gear", "volume-local", "volume-network"},
			"fs": {"ext4", "erofs", "both"}, "platform": {"linux/amd64", "linux/arm64"},
		} {
			if c.Flags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // who has one of its own keeps it
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
