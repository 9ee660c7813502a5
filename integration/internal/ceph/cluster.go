package ceph

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/internal/cephseed"
)

const (
	// stepTimeout bounds each step of a start, which takes seconds on a busy machine.
	stepTimeout = time.Minute
	stopTimeout = 10 * time.Second
)

// Cluster is a running Ceph cluster. Methods that change it may be called by only one
// goroutine at a time.
type Cluster struct {
	// Dir holds everything. Conf is its ceph.conf, which lets client.admin do anything. FSID is the
	// cluster's identity, and Host is the address of its daemons.
	Dir, Conf, FSID, Host string
	// Pool is the pool made at the start.
	Pool string

	seed     *cephseed.Seed
	mon, osd *proc.Process
}

// Missing returns the first program that a cluster needs and the machine lacks, or "".
func Missing() string {
	for _, name := range []string{"ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool", "rbd", "rados"} {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}

// Start makes a cluster in a directory and returns when its pool is usable. The directory's path
// may have at most 70 characters. The caller stops the cluster.
func Start(ctx context.Context, dir string, o *Options) (c *Cluster, err error) {
	if o == nil {
		o = &Options{}
	}
	if len(dir) > 70 {
		return nil, fmt.Errorf("directory %s is too long for sockets", dir)
	}
	c = &Cluster{Dir: dir, Conf: filepath.Join(dir, "ceph.conf"), Pool: cmp.Or(o.Pool, "rbd")}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start Ceph: %w", errors.Join(err, c.Stop()))
		}
	}()
	for _, step := range []func(context.Context) error{
		func(context.Context) error { return c.configure(o) },
		func(ctx context.Context) error { return c.seed.MakeMon(ctx) }, c.StartMon,
		func(ctx context.Context) error { return c.seed.MakeOSD(ctx) }, c.StartOSD,
		func(ctx context.Context) error { return c.makePool(ctx, o.Namespaces) },
	} {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// makePool makes the pool. It requires clients that support version 2 clones, which may lie in
// another namespace than their parents.
func (c *Cluster) makePool(ctx context.Context, namespaces []string) error {
	if _, err := c.seed.Ask(ctx, "osd", "set-require-min-compat-client", "mimic"); err != nil {
		return err
	}
	if err := c.seed.MakePool(ctx, c.Pool); err != nil {
		return err
	}
	for _, ns := range namespaces {
		if err := c.AddNamespace(ctx, ns); err != nil {
			return err
		}
	}
	return nil
}

// AddNamespace adds a namespace to the pool.
func (c *Cluster) AddNamespace(ctx context.Context, name string) error {
	_, err := c.Run(ctx, "rbd", "namespace", "create", "--pool", c.Pool, "--namespace", name)
	return err
}

// ClientConf writes a configuration file, like a node's, into the cluster's directory and
// returns its path. The file names the monitors and no key. A non-empty fsid replaces the
// cluster's real identity.
func (c *Cluster) ClientConf(fsid string) (string, error) {
	name := filepath.Join(c.Dir, "client"+fsid+".conf")
	text := fmt.Sprintf("[global]\nfsid = %s\nmon_host = [v2:%s:%d/0,v1:%s:%d/0]\nobjecter_tick_interval = 1\n", cmp.Or(fsid, c.FSID), c.Host, c.seed.MonV2, c.Host, c.seed.MonV1)
	return name, os.WriteFile(name, []byte(text), 0o644)
}

// StartMon starts the monitor, or restarts it if it has ended, and waits until it answers.
func (c *Cluster) StartMon(ctx context.Context) error {
	return c.launch(ctx, &c.mon, "ceph-mon", "a", c.seed.MonUp)
}

// StartOSD starts the OSD, or restarts it if it has ended, and waits until the cluster knows that
// it is up.
func (c *Cluster) StartOSD(ctx context.Context) error {
	// The map may still show the old OSD as up, and clients would be sent to it.
	if c.osd != nil {
		if _, err := c.seed.Ask(ctx, "osd", "down", "0"); err != nil {
			return err
		}
	}
	return c.launch(ctx, &c.osd, "ceph-osd", "0", c.seed.OSDUp)
}

// launch starts a daemon and waits until it is ready.
func (c *Cluster) launch(ctx context.Context, p **proc.Process, program, id string, ready func(context.Context) error) error {
	// A killed daemon leaves its socket behind, which blocks the next one.
	kind := strings.TrimPrefix(program, "ceph-")
	if err := os.Remove(c.socket(kind + "." + id)); err != nil && !os.IsNotExist(err) {
		return err
	}
	cmd := exec.Command(program, "-c", c.Conf, "-i", id, "-f")
	cmd.Env, cmd.Dir = c.env(), c.Dir
	started, err := proc.Launch(cmd, filepath.Join(c.Dir, program+".out"))
	if err != nil {
		return err
	}
	*p = started
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-started.Exited():
			return fmt.Errorf("%s ended (%s): %s", program, started.State(), started.Log(2048))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; it printed: %s", program, err, started.Log(2048))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// KillOSD ends the OSD with SIGKILL and returns when it is gone.
func (c *Cluster) KillOSD() { c.osd.Kill() }

// KillMon ends the monitor with SIGKILL and returns when it is gone.
func (c *Cluster) KillMon() { c.mon.Kill() }

// PauseOSD stops the OSD until ResumeOSD: requests get neither an answer nor an error.
func (c *Cluster) PauseOSD() { c.osd.Signal(syscall.SIGSTOP) }

// ResumeOSD lets a paused OSD continue.
func (c *Cluster) ResumeOSD() { c.osd.Signal(syscall.SIGCONT) }

// Stop ends the daemons, the monitor last, because an OSD waits for it when it ends.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range []*proc.Process{c.osd, c.mon} {
		if p == nil || strings.HasPrefix(p.State(), "signal") {
			continue
		}
		p.Signal(syscall.SIGCONT)
		if err := p.Stop(stopTimeout); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Logs returns the end of each daemon's output.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, p := range []*proc.Process{c.mon, c.osd} {
		if p != nil {
			fmt.Fprintf(&b, "%s (%s) printed last:\n%s\n", p.Name, p.State(), p.Log(2048))
		}
	}
	return b.String()
}

func (c *Cluster) env() []string {
	return append(os.Environ(), "CEPH_CONF="+c.Conf, "CEPH_ARGS=", "HOME="+c.Dir)
}

func (c *Cluster) socket(name string) string { return filepath.Join(c.Dir, name+".asok") }

// Run runs one of Ceph's commands as client.admin and returns what it printed.
func (c *Cluster) Run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = c.env(), c.Dir, time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// freePorts returns the first of a hundred consecutive ports below the range of outgoing
// connections. The monitor's ports among them are free.
func freePorts(host string) (int, error) {
	for range 100 {
		first := 11000 + 100*rand.IntN(80)
		if free(host, first) && free(host, first+1) && free(host, first+10) {
			return first, nil
		}
	}
	return 0, errors.New("no free ports for a monitor")
}

func free(host string, port int) bool {
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
