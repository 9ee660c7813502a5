package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"example.org/slipway/cmd/slipway/command"
)

// manCommand returns the command that writes files which are packaged with the program.
func manCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages",
		Hidden: true,
		Long: `Write a manual page for each command into DIR, which must be there: as man reads them, or with
--format markdown. The date is that of SOURCE_DATE_EPOCH, or none.`,
		Example: `  slipway man man1
  slipway man --format markdown reference`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			root.InitDefaultCompletionCmd()
			if info, err := os.Stat(args[0]); err != nil {
				return err
			} else if !info.IsDir() {
				return fmt.Errorf("%s is not a directory", args[0])
			}
			switch format {
			case "man":
				date := manDate()
				return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "Slipway", Manual: "Slipway", Date: &date}, args[0])
			case "markdown":
				link := func(name string) string { return strings.TrimSuffix(name, ".md") + ".md" }
				return doc.GenMarkdownTreeCustom(root, args[0], func(string) string { return "" }, link)
			}
			return command.WithHint(cmd, fmt.Errorf("--format is man or markdown, not %q", format))
		},
	}
	cmd.Flags().StringVar(&format, "format", "man", "man or markdown")
	return cmd
}

// manDate returns the date for reproducible builds if it is set, or else the epoch.
func manDate() time.Time {
	n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		n = 0
	}
	return time.Unix(n, 0).UTC()
}
