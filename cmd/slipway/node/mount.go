package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/agent/api"
	"example.org/slipway/agent/runtimespec"
	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
)

// absolute makes a path absolute. An empty path stays empty.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	return filepath.Abs(path)
}

// ensure returns the running agent of a configuration. If there is none, it starts one
// that continues after this command, because mounts need it as long as they exist.
func ensure(ctx context.Context, f *agentFlags) (*api.Caller, error) {
	cfg, err := f.load()
	if err != nil {
		return nil, err
	}
	c := api.NewCaller(cfg)
	if err := c.Ready(ctx); !errors.Is(err, api.ErrNoAgent) {
		return c, withAgentHint(err)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("mounting needs root: run it as root or with sudo (slipway export writes an image's tree without an agent)")
	}
	return c, startAgent(ctx, c, cfg, f)
}

// agentStart bounds how long an agent may take until it answers.
const agentStart = 30 * time.Second

func startAgent(ctx context.Context, c *api.Caller, cfg *config.Agent, f *agentFlags) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Root, 0o700); err != nil {
		return err
	}
	name := filepath.Join(cfg.Root, "agent.log")
	log, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	args := []string{"agent", "--root", cfg.Root}
	if f.file != "" {
		file, err := filepath.Abs(f.file)
		if err != nil {
			return err
		}
		args = append(args, "--config", file)
	}
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start an agent: %w", err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, agentStart)
	defer cancel()
	for {
		if _, err := c.Status(ctx); err == nil {
			return nil
		}
		select {
		case err := <-gone:
			return fmt.Errorf("the agent ended at once: %w; the end of %s:\n%s", err, name, tail(name, from))
		case <-ctx.Done():
			return fmt.Errorf("the agent does not answer: %w; the end of %s:\n%s", ctx.Err(), name, tail(name, from))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// maxTail bounds how many bytes of a log are shown.
const maxTail = 2 << 10

// tail returns the end of what was logged after an offset.
func tail(name string, from int64) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	from = max(from, end-maxTail)
	b := make([]byte, end-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	return strings.TrimSpace(string(b[:n]))
}

func mountCommand() *cobra.Command {
	var f agentFlags
	var req api.MountRequest
	cmd := &cobra.Command{
		Use:   "mount IMAGE DIR",
		Short: "Mount an image; its files are fetched when they are opened",
		Long: `Mount the file tree of REGISTRY/REPOSITORY:TAG at a directory that exists. The registry must
be one that slipway serve runs, or a mirror that the agent's configuration names. Files are
fetched when they are opened and kept for all images. The command starts an agent for this if
none runs for --root. It needs root. slipway umount unmounts the image.

The mount is nosuid and nodev, so that an image has no power over the machine. --suid and
--dev lift these restrictions.

If the agent's configuration has storage for volumes, the image may come as a volume, whose
blocks are read when they are touched. --mode volume-local mounts the volume that all share.
--mode volume-network mounts a writable clone, which slipway umount removes.`,
		Example: `  slipway mount 127.0.0.1:5000/team/app:1 /mnt
  slipway mount --mode volume-local --config /etc/slipway/agent.yml 127.0.0.1:5000/team/app:1 /mnt
  slipway mount --rw /var/tmp/changes 127.0.0.1:5000/team/app:1 /mnt
  slipway mount --root /var/tmp/state registry.example.com/team/app:1 /mnt
  slipway umount --root /var/tmp/state /mnt`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			began := time.Now()
			var err error
			if req.Dir, err = filepath.Abs(args[1]); err != nil {
				return err
			}
			if req.Upper, err = absolute(req.Upper); err != nil {
				return err
			}
			c, err := ensure(cmd.Context(), &f)
			if err != nil {
				return err
			}
			req.Image = args[0]
			m, err := c.Mount(cmd.Context(), req)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) is mounted at %s after %s%s\n", m.Image, m.Manifest, req.Dir, time.Since(began).Round(time.Millisecond), how(m.Why))
			return err
		},
	}
	f.add(cmd)
	addMode(cmd, &req.Mode)
	fl := cmd.Flags()
	fl.StringVar(&req.Upper, "rw", "", "directory for files that are written (default: the mount is read-only)")
	fl.StringVar(&req.Platform, "platform", "", "OS/ARCHITECTURE[/VARIANT] (default: Linux on this machine's architecture)")
	fl.BoolVar(&req.Suid, "suid", false, "let set-user-id programs and file capabilities of the image work (default: the mount is nosuid)")
	fl.BoolVar(&req.Dev, "dev", false, "let devices of the image work (default: the mount is nodev)")
	return cmd
}

// addMode adds the flag for the way in which an image comes to this machine.
func addMode(cmd *cobra.Command, mode *string) {
	cmd.Flags().StringVar(mode, "mode", api.ModeAuto, "how the image is mounted: gear, volume-local, volume-network, or auto (as the agent's configuration says)")
}

// how describes the ways in which the agent tried to mount an image. It returns "" if
// gear was the only way and it worked.
func how(why []string) string {
	if len(why) == 0 || len(why) == 1 && why[0] == "gear: used" {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

func umountCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount what slipway mount mounted; fetched files and changes stay",
		Example: `  slipway umount /mnt
  slipway umount --root /var/tmp/state /mnt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			cfg, err := f.load()
			if err != nil {
				return err
			}
			return withAgentHint(api.NewCaller(cfg).Umount(cmd.Context(), dir))
		},
	}
	f.add(cmd)
	return cmd
}

// runFlags are the flags of slipway run.
type runFlags struct {
	agentFlags
	platform, runtime string
	mode              string
	env               []string
	workdir           string
	host              bool
}

// addRun adds all flags.
func (f *runFlags) addRun(cmd *cobra.Command) {
	f.add(cmd)
	addMode(cmd, &f.mode)
	fl := cmd.Flags()
	fl.StringVar(&f.platform, "platform", "", "OS/ARCHITECTURE[/VARIANT] (default: Linux on this machine's architecture)")
	fl.StringVar(&f.runtime, "runtime", "runc", "program that runs containers")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "NAME=VALUE for the command's environment, may be repeated")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "directory to start in (default: the image's)")
	fl.BoolVar(&f.host, "host-network", false, "use this machine's network (default: loopback only)")
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command in a container of an image, through runc",
		Long: `Mount an image as slipway mount does, run its command or another one in a container, and
remove everything again but the fetched files. This is for trying an image out: what the
container writes is lost. The exit status is the command's. If the image has an entry point,
COMMAND becomes its arguments, as with docker run.`,
		Example: `  slipway run 127.0.0.1:5000/team/app:1
  slipway run 127.0.0.1:5000/library/debian:13 -- ls -l /
  slipway run --root /var/tmp/state -e DEBUG=1 -w /srv registry.example.com/team/app:1 -- serve --once`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runContainer(cmd, &f, args[0], args[1:], runHooks{})
		},
	}
	f.addRun(cmd)
	return cmd
}

// runHooks are called during a run. Either may be nil.
type runHooks struct {
	mounted func(*api.MountAnswer)
	// ended is called while the agent still knows the container. dir is the directory of
	// the container's mount.
	ended func(ctx context.Context, c *api.Caller, dir string)
}

func runContainer(cmd *cobra.Command, f *runFlags, image string, args []string, hooks runHooks) (err error) {
	runtime, err := exec.LookPath(f.runtime)
	if err != nil {
		return fmt.Errorf("%w; install runc, or name another runtime with --runtime", err)
	}
	ctx := cmd.Context()
	c, err := ensure(ctx, &f.agentFlags)
	if err != nil {
		return err
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	parent := filepath.Join(cfg.Root, "run-once")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	bundle, err := os.MkdirTemp(parent, "c")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bundle)) }()
	root := filepath.Join(bundle, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil { // the agent uses the resolved path, too
		return err
	}
	upper := filepath.Join(bundle, "upper")
	if f.mode == api.ModeNetwork {
		upper = "" // changes go to a clone
	}
	// The container's own namespaces limit these programs and devices.
	m, err := c.Mount(ctx, api.MountRequest{Image: image, Dir: root, Upper: upper, Platform: f.platform, Mode: f.mode, Suid: true, Dev: true})
	if err != nil {
		return err
	}
	if hooks.mounted != nil {
		hooks.mounted(&m)
	}
	defer func() {
		if hooks.ended != nil {
			hooks.ended(context.WithoutCancel(ctx), c, root)
		}
		if uerr := c.Umount(context.WithoutCancel(ctx), root); uerr != nil { // the mounted tree must not be deleted
			err = errors.Join(err, uerr)
			bundle = filepath.Join(bundle, "nothing")
		}
	}()
	if err := runtimespec.MakeVolumes(m.Config, root); err != nil {
		return err
	}
	spec, err := runtimespec.New(m.Config, runtimespec.Options{Root: root, Command: args, Env: f.env, WorkingDir: f.workdir, HostNetwork: f.host})
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(spec, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600); err != nil {
		return err
	}
	id := "slipway-" + strings.ToLower(filepath.Base(bundle))
	run := exec.CommandContext(ctx, runtime, "--root", filepath.Join(cfg.Run, "runc"), "run", "--bundle", bundle, id)
	run.Stdin, run.Stdout, run.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	run.WaitDelay = 10 * time.Second
	err = run.Run()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() > 0 {
		return command.ExitWith(status.ExitCode(), fmt.Errorf("the command ended with status %d", status.ExitCode()))
	}
	return err
}
