package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/agent"
	"example.org/slipway/agent/api"
	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
	"example.org/slipway/internal/systemd"
)

// agentFlags are the flags of all commands that concern an agent.
type agentFlags struct {
	file, root, address string
}

func (f *agentFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "config", "", "configuration file (default "+command.SystemAgentConfig+" if it is there and --root is not given; see slipway agent config)")
	cmd.Flags().StringVar(&f.root, "root", "", "directory of the agent (default /var/lib/slipway-agent)")
}

// load reads the configuration and logs its warnings.
func (f *agentFlags) load() (*config.Agent, error) {
	var over []config.Override
	set := func(key, value, flag string) {
		if value != "" {
			over = append(over, config.Override{Key: key, Value: value, Source: flag})
		}
	}
	root, err := absolute(f.root)
	if err != nil {
		return nil, err
	}
	ofSystem := f.file == "" && root == "" && command.Exists(command.SystemAgentConfig)
	if ofSystem {
		f.file = command.SystemAgentConfig
	}
	set("root", root, "--root")
	set("address", f.address, "--address")
	cfg, warnings, err := config.LoadAgent(f.file, over)
	for _, w := range warnings {
		slog.Warn("configuration", "warning", w.String())
	}
	if ofSystem {
		err = command.WhoseConfig(err)
	}
	return cfg, err
}

func agentCommand() *cobra.Command {
	var f agentFlags
	var worker string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the node agent, with which containers start before their image has arrived",
		Long: `Run the node agent. containerd uses it as a proxy snapshotter (slipway agent setup
--containerd writes the settings); slipway mount uses it without containerd. It needs root.
Without a configuration file the defaults apply that slipway agent config prints.

If the agent gets a signal to end while containers use its files, it continues until they are
gone; a second signal ends it at once. Killing the worker that it starts, even with kill -9,
disturbs no container. As a service of systemd (Type=notify) the agent is one process that
ends at once, and systemd keeps what containers need until the agent runs again. On SIGHUP,
which systemctl reload sends, the agent reads its configuration again.`,
		Example: `  slipway agent
  slipway agent --config /etc/slipway/agent.yml
  slipway agent --root /var/tmp/state
  slipway agent setup --containerd --config /etc/slipway/agent.yml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			log := agentLogger(cfg, cmd.ErrOrStderr())
			ctx := cmd.Context()
			hangup := !signal.Ignored(syscall.SIGHUP) // nohup makes a process ignore it
			agent.Outlive()
			switch {
			case cmd.Flags().Changed("worker"):
				return runWorker(ctx, cfg, worker, log)
			case systemd.IsManager():
				return storedAgent(ctx, cfg, &f, log)
			default:
				if hangup { // the end of the terminal counts as a signal to end
					var stop context.CancelFunc
					ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
					defer stop()
				}
				return keepAgent(ctx, cfg, &f, log)
			}
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.address, "address", "", "socket for containerd (default snapshotter.sock in the run directory)")
	cmd.Flags().StringVar(&worker, "worker", "", "")
	if err := cmd.Flags().MarkHidden("worker"); err != nil {
		panic(err) // the flag exists
	}
	cmd.AddCommand(volumeWorkerCommand(), agentStatusCommand(), agentStopCommand(), agentExplainCommand(),
		agentConfigCommand(), agentVerifyCommand(), agentSetupCommand())
	return cmd
}

func agentLogger(cfg *config.Agent, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo // the configuration was checked
	}
	return slog.New(command.LogHandler(w, cfg.Log.Formatter == "json", &slog.HandlerOptions{Level: level}))
}

// storedAgent runs an agent under systemd. On SIGHUP it restarts with the configuration
// at that time, in the same process, and keeps what containers need.
func storedAgent(ctx context.Context, cfg *config.Agent, f *agentFlags, log *slog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	stop := systemd.FeedWatchdog(log)
	defer stop()
	hangups, again, ended := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	defer func() { signal.Stop(hangups); close(hangups); <-ended }()
	go func() {
		defer close(ended)
		for range hangups {
			if _, err := f.load(); err != nil {
				log.Error("the new configuration is not valid; the agent keeps the one it has", "err", err)
				continue
			}
			systemd.Notify(systemd.Reloading)
			close(again)
			return
		}
	}()
	err = agent.RunStored(ctx, cfg, volumeWorker(cfg, f, self, true), again, log, func() { systemd.Notify(systemd.Ready) })
	select {
	case <-again:
	default:
		return err
	}
	if err != nil || ctx.Err() != nil {
		return err
	}
	log.Info("the agent restarts")
	signal.Ignore(syscall.SIGHUP) // until it has restarted
	return syscall.Exec(self, os.Args, os.Environ())
}

// keepAgent is the keeper. It starts workers, which run this same program.
func keepAgent(ctx context.Context, cfg *config.Agent, f *agentFlags, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("the agent mounts file systems and must be root")
	}
	stop, ended := agent.SecondSignal(ctx)
	defer ended()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return agent.Keep(ctx, stop, cfg, func(sockets []string) *exec.Cmd {
		args := []string{"agent", "--worker=" + strings.Join(sockets, ","), "--root", cfg.Root, "--address", cfg.Address}
		if f.file != "" {
			args = append(args, "--config", f.file)
		}
		cmd := exec.Command(self, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		// The keeper passes on the signals that the terminal sends to its foreground
		// processes.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd
	}, volumeWorker(cfg, f, self, false), log)
}

func runWorker(ctx context.Context, cfg *config.Agent, sockets string, log *slog.Logger) error {
	var names []string
	if sockets != "" {
		names = strings.Split(sockets, ",")
	}
	return agent.RunWorker(ctx, cfg, names, log, func() {
		log.Info("agent is ready", "root", cfg.Root, "snapshotter", cfg.Address)
	})
}

// callFlags are the flags of commands that call a running agent.
type callFlags struct {
	agentFlags
	json bool
}

func (f *callFlags) add(cmd *cobra.Command) {
	f.agentFlags.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print the answer as JSON; durations are in nanoseconds")
}

func (f *callFlags) caller() (*api.Caller, error) {
	cfg, err := f.load()
	if err != nil {
		return nil, err
	}
	return api.NewCaller(cfg), nil
}

// withAgentHint adds a hint to an error: how to start an agent, if none runs, or who may
// call it.
func withAgentHint(err error) error {
	switch {
	case errors.Is(err, api.ErrNoAgent):
		return fmt.Errorf("%w; start one with slipway agent, or name its directory with --root", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; an agent answers root only", err)
	}
	return err
}

func agentStatusCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show images, containers, and what was fetched for them",
		Example: `  slipway agent status
  slipway agent status --json --root /var/tmp/state`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			s, err := c.Status(cmd.Context())
			if err != nil {
				return withAgentHint(err)
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, s, func() { printAgent(cmd.OutOrStdout(), &s) })
		},
	}
	f.add(cmd)
	return cmd
}

func printAgent(w io.Writer, s *api.Status) {
	fmt.Fprintf(w, "agent %d in %s, since %s; images are mounted in the way %q\n", s.PID, s.Root, s.Started.Format(time.DateTime), s.Tier)
	fmt.Fprintf(w, "cache: %d files of %s", s.Cache.Files, command.Size(s.Cache.Bytes))
	if s.Cache.MaxBytes > 0 {
		fmt.Fprintf(w, ", of at most %s", command.Size(s.Cache.MaxBytes))
	}
	fmt.Fprintln(w)
	for i := range s.Images {
		img := &s.Images[i]
		fmt.Fprintf(w, "image %s (%.19s)\n  %d of %d files here, %s of %s", orElse(img.Ref, "without a name"), img.Chain, img.LocalFiles, img.Files, command.Size(img.LocalBytes), command.Size(img.Bytes))
		if img.Decision.Mode != "" {
			fmt.Fprintf(w, "; %s: %s", img.Decision.Mode, img.Decision.Reason)
		}
		fmt.Fprintf(w, "\n  fetched %s on demand, %s of the profile, %s in the background; %d waits, %s in all\n",
			command.Size(img.DemandBytes), command.Size(img.ProfileBytes), command.Size(img.BackgroundBytes), img.Stalls, img.Stalled.Round(time.Millisecond))
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		fmt.Fprintf(w, "container %s of %.19s, since %s\n", c.ID, c.Chain, c.Started.Format(time.DateTime))
	}
	if v := s.Volumes; v != nil {
		printNodeVolumes(w, v)
	}
	for i := range s.Sources {
		if src := &s.Sources[i]; src.Error != "" {
			fmt.Fprintf(w, "source %s: %d failures in a row, %d wrong contents; last: %s\n", src.Source, src.Failures, src.Lies, src.Error)
		}
	}
}

func orElse(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func agentExplainCommand() *cobra.Command {
	var f callFlags
	var svg string
	cmd := &cobra.Command{
		Use:   "explain {IMAGE | CONTAINER}",
		Short: "Explain how an image or container is started, and why",
		Long: `Explain how an image or container is started: lazily or eagerly, and which figures decided
that; how much of it is on this node; how long it waited for files, and where the files come
from. A picture of the last start shows when each file was requested, when it arrived and when
it was needed, and how good the prediction was. Name an image as it was pulled, or by the
beginning of its chain ID in slipway agent status. Name a container by its ID or by the
directory where it is mounted.`,
		Example: `  slipway agent explain registry.example.com/team/app:1
  slipway agent explain /mnt
  slipway agent explain --svg start.svg registry.example.com/team/app:1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			x, err := c.Explain(cmd.Context(), args[0])
			if err != nil {
				return withAgentHint(err)
			}
			if svg != "" {
				if x.SVG == "" {
					return fmt.Errorf("%s was not started since the agent's worker started: there is nothing to draw", args[0])
				}
				if err := os.WriteFile(svg, []byte(x.SVG), 0o644); err != nil {
					return err
				}
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, x, func() {
				for _, line := range append(x.Lines, x.Chart...) {
					fmt.Fprintln(cmd.OutOrStdout(), line)
				}
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&svg, "svg", "", "write the picture of the last start into this file")
	return cmd
}

func agentVerifyCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read every file of the cache, and remove those that have changed",
		Example: `  slipway agent verify
  slipway agent verify --config /etc/slipway/agent.yml --json`,
		Long: `Read every file of the cache and compare its SHA-256 with its name. A file that differs is
removed, and fetched again when it is needed. Containers continue to run meanwhile.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			v, err := c.Verify(cmd.Context())
			if err != nil {
				return withAgentHint(err)
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, v, func() {
				fmt.Fprintf(cmd.OutOrStdout(), "%d files read, %d were damaged and are gone; they are fetched again when they are needed\n", v.Files, v.Damaged)
			})
		},
	}
	f.add(cmd)
	return cmd
}

func agentConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Print an agent's configuration file with every key, its default and meaning",
		Example: `  slipway agent config > /etc/slipway/agent.yml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.AgentExample())
			return err
		},
	}
	cmd.AddCommand(agentConfigCheckCommand(), command.SchemaCommand("slipway agent config", config.AgentSchema))
	return cmd
}

func agentConfigCheckCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:     "check [FILE]",
		Short:   "Check an agent's configuration file",
		Example: `  slipway agent config check /etc/slipway/agent.yml`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.file = args[0]
			}
			if _, err := f.load(); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "configuration is good")
			return err
		},
	}
	return cmd
}
