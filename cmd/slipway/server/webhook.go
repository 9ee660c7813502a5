package server

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry/notify"
	"example.org/slipway/serve/admin"
)

func webhookCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "webhook",
		Short: "Manage and test the webhooks of a registry",
		Long: `Manage and test the webhooks of a registry. Those of notifications.endpoints can only be listed
and tested. The others are kept in the catalogue, and changes take effect at once, on other
servers with the same catalogue after some seconds.`,
		Example: `  slipway webhook add ci --url https://ci.example.com/hook --on push --repositories 'team/**'
  slipway webhook ls --config /etc/slipway/config.yml
  slipway webhook test --config /etc/slipway/config.yml ci`,
	}
	cmd.AddCommand(webhookListCommand(), webhookAddCommand(), webhookEditCommand(), webhookPauseCommand(), webhookResumeCommand(), webhookRemoveCommand(), webhookTestCommand())
	return cmd
}

func webhookListCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the webhooks, how many events wait for each, and how the last deliveries went",
		Example: `  slipway webhook ls --config /etc/slipway/config.yml
  slipway webhook ls --config /etc/slipway/config.yml --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Webhooks(cmd.Context())
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				return command.PrintReport(w, asJSON, rep, func() { printWebhooks(w, rep.Webhooks) })
			})
		},
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func printWebhooks(w io.Writer, list []notify.EndpointStatus) {
	if len(list) == 0 {
		fmt.Fprintln(w, "there are no webhooks; slipway webhook add adds one")
		return
	}
	when := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.Local().Format(time.DateTime)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WEBHOOK\tSTATE\tTO\tWAITING\tDELIVERED\tFAILURES\tLAST ERROR")
	for i := range list {
		e := &list[i]
		last := e.Error
		if last != "" {
			last = when(e.Failed) + " " + last
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", command.Printable(e.Name), webhookState(e), command.Printable(e.To), e.Waiting, when(e.Succeeded), e.Failures, command.Printable(last))
	}
	t.Flush()
}

// webhookState says where a webhook is kept, and whether it is paused.
func webhookState(e *notify.EndpointStatus) string {
	switch {
	case !e.Managed:
		return "configuration"
	case e.Paused:
		return "paused"
	}
	return "active"
}

func webhookTestCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test NAME",
		Short: "Send a test event to a webhook",
		Long: `Send a webhook the event of a push to the repository ` + notify.TestRepo + `, which does not exist.
The event has the format, the headers and the signature of the webhook. It does not wait in the
queue, is sent even if the webhook ignores such events, and is not sent again. The exit status is
1 unless the answer is 2xx.`,
		Example: `  slipway webhook test --config /etc/slipway/config.yml ci`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				res, err := a.TestWebhook(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				if err := command.PrintReport(w, asJSON, res, func() {
					if res.Error == "" {
						fmt.Fprintf(w, "the webhook answered %d in %s\n", res.Status, res.Took.Round(time.Millisecond))
					}
				}); err != nil {
					return err
				}
				if res.Error != "" {
					return fmt.Errorf("webhook %s: %s", args[0], res.Error)
				}
				return nil
			})
		},
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}
