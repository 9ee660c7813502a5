package node

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
	"example.org/slipway/agent/setup"
	"example.org/slipway/cmd/slipway/command"
)

func agentSetupCommand() *cobra.Command {
	var f agentFlags
	var p setup.Paths
	var containerd, docker, kubernetes, apply, undo bool
	cmd := &cobra.Command{
		Use:   "setup {--containerd | --docker | --kubernetes} [--apply | --undo]",
		Short: "Write the settings by which containerd, Docker or kubelet use the agent",
		Long: `Print the settings by which containerd, Docker Engine (29 or newer, with its containerd image
store) or kubelet use the agent and the registries of its configuration. With --apply the
command writes them and keeps copies of the files that it replaces; --undo brings the copies
back, and makes containerd forget images that only the agent can start. Give --undo the same
flags and configuration as --apply. The command prints what remains to be done by hand.`,
		Example: `  slipway agent setup --containerd --config /etc/slipway/agent.yml
  slipway agent setup --containerd --docker --apply --config /etc/slipway/agent.yml
  slipway agent setup --kubernetes --undo --config /etc/slipway/agent.yml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			var changes []setup.Change
			switch {
			case kubernetes:
				changes, err = setup.Kubernetes(cfg, p)
			case containerd:
				changes = setup.Containerd(cfg, p)
			case !docker:
				err = command.Usagef("say what for: --containerd, --docker or --kubernetes")
			}
			if err != nil {
				return err
			}
			if docker {
				more, err := setup.Docker(cfg, p)
				if err != nil {
					return err
				}
				changes = append(changes, more...)
			}
			changes = append(changes, setup.Peers(cfg)...)
			switch {
			case undo:
				err := setup.Undo(changes)
				if containerd || kubernetes {
					err = errors.Join(err, forget(cmd, cfg.CRI.Containerd))
				}
				return err
			case apply:
				err = setup.Apply(changes)
			}
			for _, c := range changes {
				out := cmd.OutOrStdout()
				switch {
				case c.File == "":
					fmt.Fprintln(out, "to do:", c.Say)
				case apply && err == nil:
					fmt.Fprintf(out, "wrote %s (%s)\n", c.File, c.Say)
				default:
					fmt.Fprintf(out, "--- %s (%s)\n%s\n", c.File, c.Say, c.Content)
				}
			}
			return err
		},
	}
	f.add(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&containerd, "containerd", false, "settings of containerd")
	fl.BoolVar(&docker, "docker", false, "settings of Docker Engine")
	fl.BoolVar(&kubernetes, "kubernetes", false, "settings of kubelet and its containerd")
	fl.BoolVar(&apply, "apply", false, "write the settings")
	fl.BoolVar(&undo, "undo", false, "undo what --apply wrote")
	fl.StringVar(&p.ContainerdDir, "containerd-conf-dir", "", "directory that containerd's configuration imports (default /etc/containerd/conf.d)")
	fl.StringVar(&p.Hosts, "containerd-hosts", "", "directory of containerd's registry settings (default /etc/containerd/certs.d)")
	fl.StringVar(&p.Docker, "docker-config", "", "Docker's configuration file (default /etc/docker/daemon.json)")
	fl.StringVar(&p.KubeletDropIn, "kubelet-drop-in", "", "systemd drop-in of kubelet (default /etc/systemd/system/kubelet.service.d/10-slipway.conf)")
	cmd.MarkFlagsMutuallyExclusive("apply", "undo")
	return cmd
}

// forget removes from containerd, if it runs, what can be used with the agent only.
func forget(cmd *cobra.Command, socket string) error {
	names, err := agent.Forget(cmd.Context(), socket, setup.Snapshotter)
	for _, name := range names {
		fmt.Fprintf(cmd.OutOrStdout(), "containerd forgot %s, whose layers it does not have\n", name)
	}
	return err
}
