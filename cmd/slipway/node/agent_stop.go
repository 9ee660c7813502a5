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
		Short: "Stop the agent that slipway agent, slipway mount or slipway run started",
		Long: `Stop the agent, and wait until it has ended. If containers or mounts use its files, the
command lists them and leaves the agent running. With --now it stops the agent nevertheless;
they can then open only the files that are on this node. It is not an error if no agent runs.
Stop an agent that systemd started with systemctl.`,
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
	cmd.Flags().BoolVar(&now, "now", false, "stop the agent although its files are in use")
	return cmd
}
