package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/agent/api"
)

// agentEnd bounds how long an agent may take to end.
const agentEnd = 60 * time.Second

func agentStopCommand() *cobra.Command {
	var f agentFlags
	var now bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End the agent that slipway mount or run started, or slipway agent",
		Long: `End the agent, and wait until it has ended. While containers or mounts use its files it is not
ended, and they are listed; --now ends it all the same, and then they can open only files that
are here. That no agent runs is no error. An agent that systemd started is ended with systemctl.`,
		Example: `  slipway agent stop
  slipway agent stop --root /var/tmp/state --now`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), agentEnd)
			defer cancel()
			err = api.NewCaller(cfg).Stop(ctx, now)
			if errors.Is(err, api.ErrNoAgent) {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "no agent is running here")
				return err
			}
			return withAgentHint(err)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "end it although its files are in use")
	return cmd
}
