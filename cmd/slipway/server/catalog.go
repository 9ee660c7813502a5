package server

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/serve/admin"
)

func catalogCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "catalog",
		Short:   "Manage the catalogue, the database of everything that the registry stores",
		Example: `  slipway catalog move --config /etc/slipway/config.yml --to postgres://slipway@db.example.com/slipway`,
	}
	cmd.AddCommand(catalogMoveCommand())
	return cmd
}

func catalogMoveCommand() *cobra.Command {
	var f command.ServerFlags
	var to, toFile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "move {--to DSN | --to-file FILE}",
		Short: "Move the catalogue into a PostgreSQL database",
		Example: `  slipway catalog move --config /etc/slipway/config.yml --to postgres://slipway@db.example.com/slipway
  slipway catalog move --config /etc/slipway/config.yml --to-file /var/lib/slipway/catalog.db`,
		Long: `Copy the catalogue into an empty PostgreSQL database, and read it back to compare. From then
on, a server that uses the data directory answers reads and refuses writes, until it is
started again with storage.catalog.postgres. If the move fails, writes are accepted again at
once. The catalogue in the directory stays as it was. The file catalog.db.moved marks it, so
that no server uses it by mistake; without that file it could be used again. Other users of
the machine can see a connection string on the command line, but not one in a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dsn, err := connection(to, toFile)
			if err != nil {
				return err
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				p := command.NewProgress("moving")
				rep, err := a.MoveCatalog(cmd.Context(), admin.MoveArgs{To: dsn}, func(r admin.MoveReport) {
					doing := "written"
					if r.Checking {
						doing = "compared"
					}
					p.Show("table %s, %d rows %s", r.Table, r.Rows, doing)
				})
				p.End()
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					fmt.Fprintf(cmd.OutOrStdout(), "moved the catalogue in %s; set storage.catalog.postgres and start the server again\n", rep.Took.Round(time.Millisecond))
					if rep.Served {
						fmt.Fprintln(cmd.OutOrStdout(), "the server that runs answers reads and refuses writes until then")
					}
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().StringVar(&to, "to", "", "connection string of the database, postgres://USER@HOST/DATABASE")
	cmd.Flags().StringVar(&toFile, "to-file", "", "file that holds the connection string")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// connection returns a connection string that is given by a flag or in a file.
func connection(text, file string) (string, error) {
	if (text == "") == (file == "") {
		return "", command.Usagef("say where to: --to DSN or --to-file FILE")
	}
	if file == "" {
		return text, nil
	}
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}
