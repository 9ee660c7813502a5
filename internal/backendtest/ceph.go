package backendtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"
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

	t   testing.TB
	dir string
}

// cephConf is the configuration. With one copy of everything, few placement groups and
// quick elections, the cluster is ready in a second.
var cephConf = template.Must(template.New("ceph.conf").Parse(`[global]
fsid = {{.FSID}}
mon_initial_members = a
mon_host = [v2:127.0.0.1:{{.MonV2}}/0,v1:127.0.0.1:{{.MonV1}}/0]
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = {{.Dir}}/keyring
run_dir = {{.Dir}}
admin_socket = {{.Dir}}/$name.$pid.sock
log_file = {{.Dir}}/$name.log
log_to_stderr = false
err_to_stderr = true
# A full disk of the machine is no concern of a cluster in RAM.
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_allow_pool_delete = true
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
{{if .Disk -}}
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = 17179869184
bluestore_block_db_create = false
bluestore_block_wal_create = false
osd_memory_target = 939524096
osd_memory_base = 134217728
osd_memory_cache_min = 67108864
# How full it is, it says this often.
osd_heartbeat_interval = 1
# A client that has gone is waited for no longer than this, when others are told of a
# change to an image. Those that are there say so every 5 s.
osd_client_watch_timeout = 11
{{else -}}
osd_objectstore = memstore
memstore_device_bytes = 4294967296
{{end -}}
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1

[mon.a]
mon_data = {{.Dir}}/mon
# Elections and changes of maps wait a second by default.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01

[osd.0]
osd_data = {{.Dir}}/osd
keyring = {{.Dir}}/osd/keyring

[client]
log_file =
admin_socket = {{.Dir}}/$name.$pid.$cctid.sock
# A client must not wait for ever for a cluster that has gone.
rados_osd_op_timeout = 30
client_mount_timeout = 30
`))

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
	c := &Ceph{t: t, dir: shortDir(t)}
	c.Conf = filepath.Join(c.dir, "ceph.conf")
	c.makeMon(disk)
	c.Mon = start(t, c.dir, func() *exec.Cmd {
		return exec.Command(mon, "-c", c.Conf, "-i", "a", "-f")
	}, func(ctx context.Context) error {
		_, err := c.ask(ctx, "mon", "stat")
		return err
	})
	c.makeOSD(osd)
	c.OSD = start(t, c.dir, func() *exec.Cmd {
		return exec.Command(osd, "-c", c.Conf, "-i", "0", "-f")
	}, c.osdUp)
	return c
}

// makeMon writes the configuration, the keys and the first state of the monitor.
func (c *Ceph) makeMon(disk bool) {
	c.t.Helper()
	for _, dir := range []string{"mon", "osd", "rgw"} {
		if err := os.Mkdir(filepath.Join(c.dir, dir), 0o700); err != nil {
			c.t.Fatal(err)
		}
	}
	fsid, v2, v1 := uuid(c.t), freePort(c.t), freePort(c.t)
	var conf bytes.Buffer
	err := cephConf.Execute(&conf, map[string]any{"FSID": fsid, "Dir": c.dir, "MonV2": v2, "MonV1": v1, "Disk": disk})
	if err == nil {
		err = os.WriteFile(c.Conf, conf.Bytes(), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	keyring, monmap := filepath.Join(c.dir, "keyring"), filepath.Join(c.dir, "monmap")
	c.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
	c.run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin",
		"--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
	c.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a",
		fmt.Sprintf("[v2:127.0.0.1:%d,v1:127.0.0.1:%d]", v2, v1), monmap)
	c.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
}

// makeOSD registers the OSD with the cluster.
func (c *Ceph) makeOSD(osd string) {
	c.t.Helper()
	id := uuid(c.t)
	secret := strings.TrimSpace(c.run("ceph-authtool", "--gen-print-key"))
	secrets, err := json.Marshal(map[string]string{"cephx_secret": secret})
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(c.dir, "secrets.json")
	if err := os.WriteFile(file, secrets, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.run("ceph", "osd", "new", id, "-i", file)
	c.run("ceph-authtool", "--create-keyring", filepath.Join(c.dir, "osd", "keyring"), "--name", "osd.0", "--add-key", secret)
	c.run(osd, "-i", "0", "--mkfs", "--osd-uuid", id)
}

func (c *Ceph) osdUp(ctx context.Context) error {
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
		return fmt.Errorf("%d OSDs are up", stat.Up)
	}
	return nil
}

// ask runs a command of the ceph tool, which may fail.
func (c *Ceph) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return c.command(ctx, "ceph", append([]string{"--connect-timeout", "5"}, args...)...)
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
	keyring := filepath.Join(c.dir, "rgw", "keyring")
	c.run("ceph", "auth", "get-or-create", "client.rgw.a", "mon", "allow rw", "osd", "allow rwx", "-o", keyring)
	s := &S3Server{
		Endpoint:  fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		AccessKey: "test", SecretKey: rand.Text(), Region: "us-east-1", Dir: c.dir,
	}
	s.Daemon = start(t, c.dir, func() *exec.Cmd {
		return exec.Command(gateway, "-c", c.Conf, "-n", "client.rgw.a", "--keyring", keyring,
			"--rgw-data", filepath.Join(c.dir, "rgw"), "--rgw-frontends", "beast endpoint="+s.Endpoint, "-f")
	}, s.Ready)
	c.run("radosgw-admin", "user", "create", "--uid=test", "--display-name=test",
		"--access-key="+s.AccessKey, "--secret-key="+s.SecretKey)
	return s
}

// uuid returns a random UUID from the kernel.
func uuid(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}
