package node

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
	"example.org/slipway/agent/api"
	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
)

// volumeWorkerCommand returns the command with which an agent starts the process that
// serves volumes.
func volumeWorkerCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:    "volume-worker",
		Short:  "Serve the volumes of an agent, which starts this itself",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			agent.Outlive()
			return agent.RunVolumeWorker(cmd.Context(), cfg, agentLogger(cfg, cmd.ErrOrStderr()))
		},
	}
	f.add(cmd)
	return cmd
}

// volumeWorker makes the command of a volume worker, which runs this same program. If
// along is set, the worker is killed when this process dies.
func volumeWorker(cfg *config.Agent, f *agentFlags, self string, along bool) func() *exec.Cmd {
	return func() *exec.Cmd {
		args := []string{"agent", "volume-worker", "--root", cfg.Root}
		if f.file != "" {
			args = append(args, "--config", f.file)
		}
		cmd := exec.Command(self, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		// Signals that the terminal sends to its foreground processes must not reach the
		// worker.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if along {
			cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		}
		return cmd
	}
}

// printNodeVolumes prints the state of an agent's volumes.
func printNodeVolumes(w io.Writer, v *api.VolumesStatus) {
	fmt.Fprintf(w, "volumes: mode %s\n", v.Mode)
	for i := range v.Volumes {
		u := &v.Volumes[i]
		what := "volume " + u.Volume
		if u.Container != "" {
			what = "clone of " + u.Volume + " for " + u.Container
		}
		fmt.Fprintf(w, "%s (%s) is %s at %s; read %s, wrote %s\n", what, u.FS, u.State, orElse(u.Dir, "no directory"), command.Size(u.ReadBytes), command.Size(u.WrittenBytes))
		if e := orElse(u.LastError, u.Error); e != "" {
			fmt.Fprintf(w, "  %d errors, the last: %s\n", u.Errors, e)
		}
	}
	if v.Problem != "" {
		fmt.Fprintf(w, "what was read of volumes is not known: %s\n", v.Problem)
	}
}
