package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/config"
	"example.org/slipway/serve"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check and explain configuration files",
		Example: `  slipway config check /etc/slipway/config.yml`}
	cmd.AddCommand(configCheckCommand(), configShowCommand(), configSchemaCommand(), configExampleCommand())
	return cmd
}

func configCheckCommand() *cobra.Command {
	return configFileCommand("check", "Check a configuration file, with the environment laid over it", func(cfg *config.Config) (string, error) {
		return "configuration is good\n", serve.CheckFiles(cfg)
	})
}

func configShowCommand() *cobra.Command {
	return configFileCommand("show", "Print the configuration with defaults and environment, without secrets", func(cfg *config.Config) (string, error) {
		out, err := cfg.Redacted()
		return string(out), err
	})
}

// configFileCommand is a command that loads the configuration, from FILE where
// one is given, and prints what do makes of it.
func configFileCommand(name, short string, do func(*config.Config) (string, error)) *cobra.Command {
	var f configFlags
	cmd := &cobra.Command{
		Use:     name + " [FILE]",
		Short:   short,
		Example: "  slipway config " + name + " /etc/slipway/config.yml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.file = args[0]
			}
			cfg, err := f.load()
			if err != nil {
				return err
			}
			out, err := do(cfg)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), out)
			return err
		},
	}
	f.add(cmd, true)
	return cmd
}

func configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration file",
		Example: `  slipway config schema > schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", config.Schema())
			return err
		},
	}
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
