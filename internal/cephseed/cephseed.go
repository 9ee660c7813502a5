// Package cephseed makes what a Ceph cluster of one monitor and one OSD begins with: its
// configuration, its keys and the empty stores of its daemons. Tests and benchmarks then start the
// daemons. With one copy of everything, few placement groups and quick elections, the cluster is
// ready in seconds.
package cephseed

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// Seed is a cluster in a directory.
type Seed struct {
	// Dir holds everything. Its path must be short, because it holds sockets.
	Dir string
	// Host is the address of the daemons; default 127.0.0.1. MonV2 and MonV1 are the monitor's ports.
	Host         string
	MonV2, MonV1 int
	// DiskBytes is the size of the OSD's sparse file. Without one, the OSD keeps everything in RAM.
	DiskBytes int64
	// Socket is the name of the daemons' admin sockets, in which Ceph replaces $name and $pid.
	Socket string
	// Global and Client are further lines of these sections of the configuration.
	Global, Client string
	// Run runs one of Ceph's programs as client.admin of the cluster and returns what it prints.
	Run func(ctx context.Context, program string, args ...string) (string, error)

	// FSID is the cluster's identity; see Configure.
	FSID string
}

var conf = template.Must(template.New("ceph.conf").Parse(`[global]
fsid = {{.FSID}}
mon_initial_members = a
mon_host = [v2:{{.Host}}:{{.MonV2}}/0,v1:{{.Host}}:{{.MonV1}}/0]
public_network = {{.Network}}
cluster_network = {{.Network}}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = {{.Dir}}/keyring
run_dir = {{.Dir}}
admin_socket = {{.Dir}}/{{.Socket}}
log_file = {{.Dir}}/$name.log
log_to_stderr = false
err_to_stderr = true
# The machine's disk may be as full as it likes.
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
{{if .DiskBytes -}}
osd_objectstore = bluestore
bluestore_block_create = true
bluestore_block_size = {{.DiskBytes}}
bluestore_block_db_create = false
bluestore_block_wal_create = false
# An OSD takes as little memory as Ceph lets it have.
osd_memory_target = 939524096
osd_memory_base = 134217728
osd_memory_cache_min = 67108864
{{else -}}
osd_objectstore = memstore
memstore_device_bytes = 4294967296
{{end -}}
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
{{.Global}}
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
{{.Client}}`))

// Conf returns the path of the configuration. Clients use it too, as CEPH_CONF.
func (s *Seed) Conf() string { return filepath.Join(s.Dir, "ceph.conf") }

// Network returns the network that Host lies in, as wide as loopback's.
func (s *Seed) Network() string {
	mask := net.CIDRMask(8, 32)
	return (&net.IPNet{IP: net.ParseIP(s.Host).Mask(mask), Mask: mask}).String()
}

// Configure gives the cluster an identity, makes the directories and writes the configuration.
func (s *Seed) Configure() (err error) {
	s.Host = cmp.Or(s.Host, "127.0.0.1")
	if s.FSID, err = uuid(); err != nil {
		return err
	}
	for _, dir := range []string{"mon", "osd"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	var text strings.Builder
	if err := conf.Execute(&text, s); err != nil {
		return err
	}
	return os.WriteFile(s.Conf(), []byte(text.String()), 0o600)
}

// MakeMon writes the keys and the monitor's first state.
func (s *Seed) MakeMon(ctx context.Context) error {
	keyring, monmap := filepath.Join(s.Dir, "keyring"), filepath.Join(s.Dir, "monmap")
	address := fmt.Sprintf("[v2:%s:%d,v1:%s:%d]", s.Host, s.MonV2, s.Host, s.MonV1)
	return s.runAll(ctx, [][]string{
		{"ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		{"ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"},
		{"monmaptool", "--create", "--fsid", s.FSID, "--addv", "a", address, monmap},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring},
	})
}

// MakeOSD registers the OSD with the running monitor and makes its empty store.
func (s *Seed) MakeOSD(ctx context.Context) error {
	id, err := uuid()
	if err != nil {
		return err
	}
	secret, err := s.Run(ctx, "ceph-authtool", "--gen-print-key")
	if err != nil {
		return err
	}
	secret = strings.TrimSpace(secret)
	secrets, err := json.Marshal(map[string]string{"cephx_secret": secret})
	if err != nil {
		return err
	}
	file := filepath.Join(s.Dir, "secrets.json")
	if err := os.WriteFile(file, secrets, 0o600); err != nil {
		return err
	}
	return s.runAll(ctx, [][]string{
		{"ceph", "osd", "new", id, "-i", file},
		{"ceph-authtool", "--create-keyring", filepath.Join(s.Dir, "osd", "keyring"), "--name", "osd.0", "--add-key", secret},
		{"ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", id},
	})
}

// Ask runs a command of the ceph tool that does not wait long for the monitor.
func (s *Seed) Ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	return s.Run(ctx, "ceph", append([]string{"--connect-timeout", "5"}, args...)...)
}

// MonUp returns an error unless the monitor answers.
func (s *Seed) MonUp(ctx context.Context) error {
	_, err := s.Ask(ctx, "mon", "stat")
	return err
}

// OSDUp returns an error unless the cluster knows that the OSD is up.
func (s *Seed) OSDUp(ctx context.Context) error {
	out, err := s.Ask(ctx, "osd", "stat", "-f", "json")
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

// MakePool makes a pool for RBD images.
func (s *Seed) MakePool(ctx context.Context, name string) error {
	return s.runAll(ctx, [][]string{{"ceph", "osd", "pool", "create", name, "8", "8"}, {"rbd", "pool", "init", name}})
}

func (s *Seed) runAll(ctx context.Context, commands [][]string) error {
	for _, args := range commands {
		if _, err := s.Run(ctx, args[0], args[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// uuid returns a random UUID from the kernel.
func uuid() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	return strings.TrimSpace(string(b)), err
}
