package backendtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/internal/cephseed"
)

// cephStep bounds one command while a cluster is made.
const cephStep = time.Minute

// Ceph is a cluster of one monitor and one OSD. The cluster of StartCeph keeps everything
// in RAM and loses it when it ends. The cluster of StartRBD has a disk.
type Ceph struct {
	// Conf is the path of the configuration file. Clients use it too, as CEPH_CONF.
	Conf string
	// Mon and OSD are the processes of the cluster.
	Mon, OSD *Daemon

	t    testing.TB
	dir  string
	seed *cephseed.Seed
}

// StartCeph starts a cluster in RAM.
func StartCeph(t testing.TB) *Ceph {
	t.Helper()
	return startCeph(t, false)
}

func startCeph(t testing.TB, disk bool) *Ceph {
	t.Helper()
	mon, osd := tool(t, "ceph-mon"), tool(t, "ceph-osd")
	for _, name := range []string{"ceph", "ceph-authtool", "monmaptool"} {
		tool(t, name)
	}
	dir := shortDir(t)
	c := &Ceph{t: t, dir: dir}
	c.seed = &cephseed.Seed{Dir: dir, MonV2: freePort(t), MonV1: freePort(t), Socket: "$name.$pid.sock", Run: c.command,
		// A client must not wait for ever for a cluster that has gone.
		Client: "admin_socket = " + dir + "/$name.$pid.$cctid.sock\nrados_osd_op_timeout = 30\nclient_mount_timeout = 30\n"}
	if disk {
		c.seed.DiskBytes = 16 << 30
		// The OSD reports in each heartbeat how full it is. The watch timeout bounds how
		// long a client that is gone delays the notification of others about a change to
		// an image. Live clients report every 5 s.
		c.seed.Global = "osd_heartbeat_interval = 1\nosd_client_watch_timeout = 11\n"
	}
	c.Conf = c.seed.Conf()
	if err := c.seed.Configure(); err != nil {
		t.Fatal(err)
	}
	c.step(c.seed.MakeMon)
	c.Mon = start(t, dir, func() *exec.Cmd {
		return exec.Command(mon, "-c", c.Conf, "-i", "a", "-f")
	}, c.seed.MonUp)
	c.step(c.seed.MakeOSD)
	c.OSD = start(t, dir, func() *exec.Cmd {
		return exec.Command(osd, "-c", c.Conf, "-i", "0", "-f")
	}, c.seed.OSDUp)
	return c
}

// step does one step of making the cluster.
func (c *Ceph) step(do func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := do(ctx); err != nil {
		c.t.Fatal(err)
	}
}

// run runs a command that must succeed.
func (c *Ceph) run(name string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cephStep)
	defer cancel()
	out, err := c.command(ctx, name, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *Ceph) command(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CEPH_CONF="+c.Conf, "CEPH_ARGS=")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// RGW starts Ceph with its S3 gateway.
func RGW(t testing.TB) *S3Server {
	t.Helper()
	gateway := tool(t, "radosgw")
	tool(t, "radosgw-admin")
	c := StartCeph(t)
	rgw := filepath.Join(c.dir, "rgw")
	if err := os.Mkdir(rgw, 0o700); err != nil {
		t.Fatal(err)
	}
	keyring := filepath.Join(rgw, "keyring")
	c.run("ceph", "auth", "get-or-create", "client.rgw.a", "mon", "allow rw", "osd", "allow rwx", "-o", keyring)
	s := &S3Server{
		Endpoint:  fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		AccessKey: "test", SecretKey: rand.Text(), Region: "us-east-1", Dir: c.dir,
	}
	s.Daemon = start(t, c.dir, func() *exec.Cmd {
		return exec.Command(gateway, "-c", c.Conf, "-n", "client.rgw.a", "--keyring", keyring,
			"--rgw-data", rgw, "--rgw-frontends", "beast endpoint="+s.Endpoint, "-f")
	}, s.Ready)
	c.run("radosgw-admin", "user", "create", "--uid=test", "--display-name=test",
		"--access-key="+s.AccessKey, "--secret-key="+s.SecretKey)
	return s
}
