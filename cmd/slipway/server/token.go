package server

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config/yamlfile"
	"example.org/slipway/registry/auth"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Manage the API tokens of robots: CI jobs, deployments and other programs",
		Example: `  slipway token create ci --allow 'team/**=pull,push'
  slipway token ls`,
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRevokeCommand())
	return cmd
}

func tokenCreateCommand() *cobra.Command {
	var f command.ServerFlags
	var allow []string
	var asJSON bool
	expires := "90d"
	cmd := &cobra.Command{
		Use:   "create ROBOT --allow PATTERN=ACTION[,ACTION...]",
		Short: "Create an API token for a robot, and print it once",
		Example: `  slipway token create ci --allow 'team/**=pull,push' --allow 'base/**=pull'
  slipway token create deploy --allow 'team/app=pull' --expires 1y
  slipway token create ci --config /etc/slipway/config.yml --allow 'team/**=pull,push' | docker login -u ci --password-stdin registry.example.com`,
		Long: `Create an API token for a robot. Standard output gets only the token. The registry stores only
its hash, so the token cannot be shown again. Clients use it as the password of the user ROBOT,
or as a bearer token.

A token permits pull, push and delete on the repositories that match its patterns, and nothing
else; the rules in auth.access do not apply to robots. Clients that push also need pull. To
replace a token, create another one for the same robot, and revoke the old one by its id.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			create := dataroot.CreateTokenArgs{Robot: args[0]}
			var err error
			if create.Rights, err = parseRights(allow); err != nil {
				return err
			}
			if create.Lifetime, err = parseLifetime(expires); err != nil {
				return err
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				t, err := a.CreateToken(cmd.Context(), create)
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, t, func() {
					fmt.Fprintf(cmd.ErrOrStderr(), "token %s of robot %s, %s; it is shown only now\nto use it: docker login -u %s --password-stdin REGISTRY\n", t.ID, t.Robot, expiry(t.APIToken), t.Robot)
					fmt.Fprintln(cmd.OutOrStdout(), t.Token)
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().StringArrayVar(&allow, "allow", nil, "what the token permits, as `PATTERN=ACTION[,ACTION...]` with pull, push, delete or *; may be given several times")
	cmd.Flags().StringVar(&expires, "expires", expires, "time until the token expires, such as 12h, 90d or 1y, or never")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// parseRights parses PATTERN=ACTION[,ACTION...].
func parseRights(allow []string) (rights []auth.Right, err error) {
	for _, s := range allow {
		pattern, actions, ok := strings.Cut(s, "=")
		if !ok || pattern == "" || actions == "" {
			return nil, command.Usagef("--allow %s: write it as PATTERN=ACTION, such as --allow 'team/**=pull,push'", s)
		}
		rights = append(rights, auth.Right{Repositories: []string{pattern}, Actions: strings.Split(actions, ",")})
	}
	if len(rights) == 0 {
		return nil, command.Usagef("say what the token permits, such as --allow 'team/**=pull,push'")
	}
	return rights, nil
}

// parseLifetime parses a duration that may have years or be "never", which is 0.
func parseLifetime(s string) (time.Duration, error) {
	if s == "never" {
		return 0, nil
	}
	text, years := strings.CutSuffix(s, "y")
	if years {
		text += "d"
	}
	d, err := yamlfile.ParseDuration(text)
	if years {
		d *= 365
	}
	if err != nil || d <= 0 {
		return 0, command.Usagef("--expires %s: write a time such as 12h, 90d or 1y, or never", s)
	}
	return d, nil
}

func expiry(t dataroot.APIToken) string {
	switch {
	case t.Expires == nil:
		return "never expires"
	case t.Expires.Before(time.Now()):
		return "expired " + t.Expires.Format(time.DateOnly)
	}
	return "expires " + t.Expires.Format(time.RFC3339)
}

func tokenListCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List API tokens: what they permit, when they expire and when they were last used",
		Example: `  slipway token ls
  slipway token ls --config /etc/slipway/config.yml --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Tokens(cmd.Context())
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { printTokens(cmd.OutOrStdout(), rep) })
			})
		},
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func printTokens(w io.Writer, rep admin.TokensReport) {
	if len(rep.Tokens) == 0 {
		fmt.Fprintln(w, "there are no API tokens; slipway token create makes one")
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROBOT\tID\tPERMITS\tEXPIRES\tLAST USED")
	for _, t := range rep.Tokens {
		var rights []string
		for _, r := range t.Rights {
			rights = append(rights, strings.Join(r.Repositories, " ")+"="+strings.Join(r.Actions, ","))
		}
		used := "never"
		if t.LastUsed != nil {
			used = t.LastUsed.Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", t.Robot, t.ID, strings.Join(rights, " "), strings.TrimPrefix(expiry(t), "expires "), used)
	}
	_ = tw.Flush() // an error of standard output shows at the end of the command
}

func tokenRevokeCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke {ROBOT | ID}...",
		Short: "Revoke API tokens at once: one by its id, or all of a robot",
		Example: `  slipway token revoke ci
  slipway token revoke 3kq5v2m7xw4n6abc`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.RevokeTokens(cmd.Context(), admin.RevokeArgs{Which: args})
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					for _, t := range rep.Tokens {
						fmt.Fprintf(cmd.OutOrStdout(), "revoked token %s of robot %s\n", t.ID, t.Robot)
					}
				})
			})
		},
	}
	f.Add(cmd, false)
	command.AddJSON(cmd, &asJSON)
	return cmd
}
