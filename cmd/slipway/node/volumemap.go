package node

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/agent/api"
	"example.org/slipway/cmd/slipway/command"
)

func volumeMapCommand() *cobra.Command {
	var f agentFlags
	var platform string
	var json bool
	cmd := &cobra.Command{
		Use:   "map IMAGE",
		Short: "Map and mount an image's volume on this node, and print where",
		Long: `Map the volume of REGISTRY/REPOSITORY:TAG on this node, mount it read-only, and print the file
or device and the directory. The mount stays until slipway volume unmap, even if the agent is
restarted. Containers of the image use the same mount. The command needs root and an agent
whose configuration has storage for volumes; it starts one if none runs for --root.`,
		Example: `  slipway volume map 127.0.0.1:5000/team/app:1
  slipway volume map --json --config /etc/slipway/agent.yml registry.example.com/team/app:1
  slipway volume unmap 127.0.0.1:5000/team/app:1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := ensure(cmd.Context(), &f)
			if err != nil {
				return err
			}
			a, err := c.MapVolume(cmd.Context(), api.MapRequest{Image: args[0], Platform: platform})
			if err != nil {
				return err
			}
			return command.PrintReport(cmd.OutOrStdout(), json, a, func() {
				fmt.Fprintf(cmd.OutOrStdout(), "volume %s (%s) of %s\nfile %s\ndirectory %s\n", a.Volume, a.FS, a.Image, a.File, a.Dir)
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&platform, "platform", "", "OS/ARCHITECTURE[/VARIANT] (default: Linux on this machine's architecture)")
	cmd.Flags().BoolVar(&json, "json", false, "print the answer as JSON")
	return cmd
}

func volumeUnmapCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "unmap IMAGE",
		Short: "Release what slipway volume map mapped",
		Long: `Release the volume that slipway volume map mapped. It is unmapped when no image or container
on this node needs it. Name the image as you named it to slipway volume map.`,
		Example: `  slipway volume unmap 127.0.0.1:5000/team/app:1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			return withAgentHint(api.NewCaller(cfg).UnmapVolume(cmd.Context(), args[0]))
		},
	}
	f.add(cmd)
	return cmd
}
