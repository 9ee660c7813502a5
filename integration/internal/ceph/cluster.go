package ceph

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
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
)

const (
	// stepTimeout bounds each step of a start, which takes seconds on a busy machine.
	stepTimeout = time.Minute
	stopTimeout = 10 * time.Second
)

// Cluster is a running Ceph cluster. Only one goroutine at a time may call its methods, except
// those that only ask.
type Cluster struct {
	// Dir holds everything. Conf is its ceph.conf, which lets client.admin do anything. FSID is the
	// cluster's identity, and Host is the address of its daemons.
	Dir, Conf, FSID, Host string
	// Pool is the pool made at the start.
	Pool string

	monV2, monV1 int
	mon, osd     *proc.Process
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
		c.makeMon, c.StartMon, c.makeOSD, c.StartOSD,
		func(ctx context.Context) error { return c.makePool(ctx, o.Namespaces) },
	} {
		if err := step(ctx); err != nil {
			return c, err
		}
	}
	return c, nil
}

// makeMon writes the keys and the monitor's first state.
func (c *Cluster) makeMon(ctx context.Context) error {
	keyring, monmap := filepath.Join(c.Dir, "keyring"), filepath.Join(c.Dir, "monmap")
	address := fmt.Sprintf("[v2:%s:%d,v1:%s:%d]", c.Host, c.monV2, c.Host, c.monV1)
	for _, args := range [][]string{
		{"ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		{"ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"},
		{"monmaptool", "--create", "--fsid", c.FSID, "--addv", "a", address, monmap},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring},
	} {
		if _, err := c.Run(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// makeOSD registers the OSD with the cluster and makes its empty store.
func (c *Cluster) makeOSD(ctx context.Context) error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	uuid := strings.TrimSpace(string(id))
	secret, err := c.Run(ctx, "ceph-authtool", "--gen-print-key")
	if err != nil {
		return err
	}
	secrets, err := json.Marshal(map[string]string{"cephx_secret": secret})
	if err != nil {
		return err
	}
	file := filepath.Join(c.Dir, "secrets.json")
	if err := os.WriteFile(file, secrets, 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"ceph", "osd", "new", uuid, "-i", file},
		{"ceph-authtool", "--create-keyring", filepath.Join(c.Dir, "osd", "keyring"), "--name", "osd.0", "--add-key", secret},
		{"ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uuid},
	} {
		if _, err := c.Run(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// makePool makes the pool. It requires clients that support version 2 clones, which may lie in
// another namespace than their parents.
func (c *Cluster) makePool(ctx context.Context, namespaces []string) error {
	list := [][]string{
		{"ceph", "osd", "set-require-min-compat-client", "mimic"},
		{"ceph", "osd", "pool", "create", c.Pool, "8", "8"},
		{"rbd", "pool", "init", c.Pool},
	}
	for _, ns := range namespaces {
		list = append(list, []string{"rbd", "namespace", "create", "--pool", c.Pool, "--namespace", ns})
	}
	for _, args := range list {
		if _, err := c.Run(ctx, args[0], args[1:]...); err != nil {
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

// ClientConf writes a configuration file like that of a node into the cluster's directory and
// returns its path. The file names the monitors and no key. A non-empty fsid replaces the cluster's
// real identity.
func (c *Cluster) ClientConf(fsid string) (string, error) {
	name := filepath.Join(c.Dir, "client"+fsid+".conf")
	text := fmt.Sprintf("[global]\nfsid = %s\nmon_host = [v2:%s:%d/0,v1:%s:%d/0]\nobjecter_tick_interval = 1\n", cmp.Or(fsid, c.FSID), c.Host, c.monV2, c.Host, c.monV1)
	return name, os.WriteFile(name, []byte(text), 0o644)
}

// StartMon starts the monitor, or restarts it if it has ended, and waits until it answers.
func (c *Cluster) StartMon(ctx context.Context) error {
	return c.launch(ctx, &c.mon, "ceph-mon", "a", func(ctx context.Context) error {
		_, err := c.ask(ctx, "mon", "stat")
		return err
	})
}

// StartOSD starts the OSD, or restarts it if it has ended, and waits until the cluster knows that
// it is up.
func (c *Cluster) StartOSD(ctx context.Context) error {
	// The map may still show the old OSD as up, and clients would be sent to it.
	if c.osd != nil {
		if _, err := c.ask(ctx, "osd", "down", "0"); err != nil {
			return err
		}
	}
	return c.launch(ctx, &c.osd, "ceph-osd", "0", func(ctx context.Context) error {
		out, err := c.ask(ctx, "osd", "stat", "-f", "json")
		if err != nil {
			return err
		}
		var stat struct {
			Up int `json:"num_up_osds"`
		}
		if err := json.Unmarshal([]byte(out), &stat); err != nil {
			return err
		}
		if stat.Up != 1 {
			return errors.New("the OSD is not up")
		}
		return nil
	})
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

// ask runs a command of the ceph tool that does not wait long for the monitor.
func (c *Cluster) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return c.Run(ctx, "ceph", append([]string{"--connect-timeout", "5"}, args...)...)
}

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
