package server

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/registry/notify"
	"example.org/slipway/serve/admin"
)

// webhookFlags say what a webhook is to be.
type webhookFlags struct {
	url, format, secretFile string
	on, repositories        []string
	noSecret                bool
}

func (f *webhookFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.url, "url", "", "`URL` that events are posted to; its host has a public address, or one in notifications.networks")
	fl.StringSliceVar(&f.on, "on", nil, "`EVENTS` that it is told of: push, tag, delete, pull (default push,tag,delete)")
	fl.StringSliceVar(&f.repositories, "repositories", nil, "`PATTERNS` of the repositories that it is told of, such as team/**; may be given several times (default all)")
	fl.StringVar(&f.format, "format", "", "form of events: docker or cloudevents (default docker)")
	fl.StringVar(&f.secretFile, "secret-file", "", "`FILE` with the secret that signs events, or - for standard input")
}

// change returns what the flags that were given change.
func (f *webhookFlags) change(cmd *cobra.Command, name string) (notify.Change, error) {
	c := notify.Change{Name: name}
	given := cmd.Flags().Changed
	if given("url") {
		c.URL = &f.url
	}
	if given("format") {
		format := notify.Format(f.format)
		c.Format = &format
	}
	if given("on") {
		c.Events = []notify.Action{}
		for _, a := range f.on {
			c.Events = append(c.Events, notify.Action(strings.TrimSpace(a)))
		}
	}
	if given("repositories") {
		c.Repositories = append([]string{}, f.repositories...)
	}
	if given("secret-file") && f.noSecret {
		return c, command.Usagef("give --secret-file or --no-secret, not both")
	}
	if f.noSecret {
		c.Secret = new(string)
	}
	if given("secret-file") {
		secret, err := command.ReadSecret(f.secretFile, cmd.InOrStdin())
		if err != nil {
			return c, err
		}
		c.Secret = &secret
	}
	return c, nil
}

// webhookChange is a command that changes a webhook.
func webhookChange(cmd *cobra.Command, done string, change func(*cobra.Command, string) (notify.Change, error), do func(*admin.Admin, *cobra.Command, notify.Change) (notify.EndpointStatus, error)) *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := change(cmd, args[0])
		if err != nil {
			return err
		}
		return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
			st, err := do(a, cmd, c)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			return command.PrintReport(w, asJSON, st, func() { fmt.Fprintf(w, done+"\n", command.Printable(st.Name)) })
		})
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func changeWebhook(a *admin.Admin, cmd *cobra.Command, c notify.Change) (notify.EndpointStatus, error) {
	return a.ChangeWebhook(cmd.Context(), c)
}

func webhookAddCommand() *cobra.Command {
	var f webhookFlags
	cmd := webhookChange(&cobra.Command{
		Use:   "add NAME --url URL",
		Short: "Add a webhook",
		Long: `Add a webhook, which is told of images and tags, and not of single blobs. It needs no restart.
URL and secret are kept in the catalogue and its backups, and are never shown.`,
		Example: `  slipway webhook add ci --url https://ci.example.com/hook --on push --repositories 'team/**'
  slipway webhook add audit --url https://audit.example.com/in --on push,tag,delete,pull --format cloudevents --secret-file /run/secrets/audit`,
	}, "added webhook %s; slipway webhook test sends it an event", func(cmd *cobra.Command, name string) (notify.Change, error) {
		if f.url == "" {
			return notify.Change{}, command.Usagef("say where events go, with --url")
		}
		return f.change(cmd, name)
	}, func(a *admin.Admin, cmd *cobra.Command, c notify.Change) (notify.EndpointStatus, error) {
		return a.AddWebhook(cmd.Context(), c)
	})
	f.add(cmd)
	return cmd
}

func webhookEditCommand() *cobra.Command {
	var f webhookFlags
	cmd := webhookChange(&cobra.Command{
		Use:   "edit NAME",
		Short: "Change a webhook that was added",
		Long: `Change a webhook that was added. What no flag names stays as it is. Events that wait are sent to
the new URL.`,
		Example: `  slipway webhook edit ci --url https://ci2.example.com/hook
  slipway webhook edit ci --on push,delete --repositories 'team/**,base/*'`,
	}, "changed webhook %s", func(cmd *cobra.Command, name string) (notify.Change, error) {
		c, err := f.change(cmd, name)
		if err == nil && c.URL == nil && c.Format == nil && c.Events == nil && c.Repositories == nil && c.Secret == nil {
			err = command.Usagef("say what is to change, such as --url or --on")
		}
		return c, err
	}, changeWebhook)
	f.add(cmd)
	cmd.Flags().BoolVar(&f.noSecret, "no-secret", false, "sign events no longer")
	return cmd
}

func paused(yes bool) func(*cobra.Command, string) (notify.Change, error) {
	return func(_ *cobra.Command, name string) (notify.Change, error) {
		return notify.Change{Name: name, Paused: &yes}, nil
	}
}

func webhookPauseCommand() *cobra.Command {
	return webhookChange(&cobra.Command{
		Use:   "pause NAME",
		Short: "Send a webhook nothing until it is resumed",
		Long: `Send a webhook nothing until slipway webhook resume. Events that wait are sent then; events of
the time between are not kept for it.`,
		Example: `  slipway webhook pause ci`,
	}, "paused webhook %s", paused(true), changeWebhook)
}

func webhookResumeCommand() *cobra.Command {
	return webhookChange(&cobra.Command{
		Use:     "resume NAME",
		Short:   "Send a paused webhook events again",
		Example: `  slipway webhook resume ci`,
	}, "resumed webhook %s", paused(false), changeWebhook)
}

func webhookRemoveCommand() *cobra.Command {
	return webhookChange(&cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a webhook that was added, with the events that wait for it",
		Example: `  slipway webhook rm ci`,
	}, "removed webhook %s", func(_ *cobra.Command, name string) (notify.Change, error) {
		return notify.Change{Name: name}, nil
	}, func(a *admin.Admin, cmd *cobra.Command, c notify.Change) (notify.EndpointStatus, error) {
		return notify.EndpointStatus{Name: c.Name, Managed: true}, a.RemoveWebhook(cmd.Context(), c.Name)
	})
}
