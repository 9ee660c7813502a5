package server

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check and explain configuration files",
		Example: `  slipway config check /etc/slipway/config.yml`}
	cmd.AddCommand(configCheckCommand(), configShowCommand(), command.SchemaCommand("slipway config", config.Schema), configExampleCommand(), configReloadCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	return configFileCommand("check", "Check a configuration file together with the environment variables that override it", func(cmd *cobra.Command, asJSON bool, f *command.ServerFlags) error {
		cfg, err := f.Load()
		if err == nil {
			err = serve.CheckFiles(cfg)
		}
		result := struct {
			Good     bool     `json:"good"`
			Problems []string `json:"problems,omitempty"` // FILE:LINE: MESSAGE if it is about a line
			Warnings []string `json:"warnings,omitempty"` // likewise
		}{Good: err == nil, Warnings: f.Warnings}
		if err != nil {
			result.Problems = strings.Split(err.Error(), "\n")
		}
		w := cmd.OutOrStdout()
		return errors.Join(command.PrintReport(w, asJSON, result, func() {
			if err == nil {
				fmt.Fprintln(w, "configuration is good")
			}
		}), err)
	})
}

func configShowCommand() *cobra.Command {
	return configFileCommand("show", "Print the configuration in effect, with defaults and environment but without secrets", func(cmd *cobra.Command, asJSON bool, f *command.ServerFlags) error {
		cfg, err := f.Load()
		if err != nil {
			return err
		}
		type setting struct {
			Key   string `json:"key"`
			Value string `json:"value"`          // written as in a file
			From  string `json:"from,omitempty"` // FILE:LINE, a variable or a flag; empty for the default
		}
		var list []setting
		for _, s := range cfg.Settings() {
			list = append(list, setting{s.Key, s.Value, s.From})
		}
		text, err := cfg.Redacted()
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		return command.PrintReport(w, asJSON, list, func() { fmt.Fprintf(w, "%s", text) })
	})
}

// configFileCommand returns a command that calls the function do with the flags that name the
// configuration, which is in FILE if that is given.
func configFileCommand(name, short string, do func(cmd *cobra.Command, asJSON bool, f *command.ServerFlags) error) *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   name + " [FILE]",
		Short: short,
		Example: "  slipway config " + name + " /etc/slipway/config.yml\n" +
			"  slipway config " + name + " /etc/slipway/config.yml --output json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.File = args[0]
			}
			return do(cmd, asJSON, &f)
		},
	}
	f.Add(cmd, true)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func configExampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "example",
		Short:   "Print a configuration file with every key, its default and meaning",
		Example: `  slipway config example > config.yml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Example())
			return err
		},
	}
}

func configReloadCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Make the running server read its access rules, users and rules of replication again",
		Example: `  slipway config reload
  slipway config reload --config /etc/slipway/config.yml`,
		Long: `Make the running server read its access rules (auth.access), its users (auth.htpasswd) and its
rules of replication (replication) again. The server also does so by itself some seconds after
the files have changed. If something is wrong with them, the rules and users before the change
stay, and the command says what it is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Reload(cmd.Context())
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					w := cmd.OutOrStdout()
					fmt.Fprintf(w, "%d access rules, %s; %d users, %s; %d rules of replication, %s\n", rep.Rules, changed(rep.RulesChanged), rep.Users, changed(rep.UsersChanged),
						rep.Replication, changed(rep.ReplicationChanged))
					if rep.Restart {
						fmt.Fprintln(w, "other keys of auth have changed; they take effect with a restart of the server")
					}
				})
			})
		},
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func changed(yes bool) string {
	if yes {
		return "changed"
	}
	return "as before"
}
