package ceph

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// Options are the options of a cluster. The zero value is a cluster on loopback.
type Options struct {
	// Host is the address that the daemons listen on; default 127.0.0.1.
	Host string
	// DiskBytes is the size of the OSD's sparse file; default 8 GiB.
	DiskBytes int64
	// Pool is made at the start, with the namespaces; default "rbd" and no namespaces.
	Pool       string
	Namespaces []string
}

// settings are the values for the template of the configuration.
type settings struct {
	Dir, FSID, Host, Network string
	Port                     int
	DiskBytes                int64
}

// conf is the configuration: one copy of everything, few placement groups, quick
// elections. An OSD takes as little memory as Ceph lets it have.
var conf = template.Must(template.New("ceph.conf").Parse(`[global]
fsid = {{.FSID}}
mon_initial_members = a
mon_host = [v2:{{.Host}}:{{.Port}}/0,v1:{{.Host}}:{{.V1}}/0]
public_network = {{.Network}}
cluster_network = {{.Network}}
ms_bind_port_min = {{.OSDFirst}}
ms_bind_port_max = {{.OSDLast}}
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
keyring = {{.Dir}}/keyring
run_dir = {{.Dir}}
admin_socket = {{.Dir}}/$name.asok
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
osd_memory_target = 939524096
osd_memory_base = 134217728
osd_memory_cache_min = 67108864
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_scrub_load_threshold = 0.001
# Who was killed counts as a watcher for half a minute by default; clients say that they
# are there more often than by default, too, see objecter_tick_interval.
osd_client_watch_timeout = 6
# That a disk is full is told every five seconds by default.
osd_mon_report_interval = 1
osd_objectstore = bluestore
bluestore_block_size = {{.DiskBytes}}
bluestore_block_create = true
bluestore_block_db_create = false
bluestore_block_wal_create = false
mgr_initial_modules =

[mon.a]
mon_data = {{.Dir}}/mon
# Changes of maps wait a second by default.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01

[osd.0]
osd_data = {{.Dir}}/osd
keyring = {{.Dir}}/osd/keyring

[client]
log_file =
admin_socket =
objecter_tick_interval = 1
# What this package asks must not wait for ever for a cluster that was killed.
rados_osd_op_timeout = 20
client_mount_timeout = 20
`))

// V1, OSDFirst and OSDLast follow from the monitor's port.
func (s settings) V1() int       { return s.Port + 1 }
func (s settings) OSDFirst() int { return s.Port + 10 }
func (s settings) OSDLast() int  { return s.Port + 99 }

// network returns the network that an address lies in, as wide as loopback's.
func network(host string) string {
	ip := net.ParseIP(host)
	return (&net.IPNet{IP: ip.Mask(net.CIDRMask(8, 32)), Mask: net.CIDRMask(8, 32)}).String()
}

// configure writes the configuration and makes the directories.
func (c *Cluster) configure(o *Options) error {
	for _, d := range []string{"mon", "osd"} {
		if err := os.MkdirAll(filepath.Join(c.Dir, d), 0o700); err != nil {
			return err
		}
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	c.FSID = strings.TrimSpace(string(id))
	host := cmp.Or(o.Host, "127.0.0.1")
	s := settings{Dir: c.Dir, FSID: c.FSID, Host: host, Network: network(host), DiskBytes: cmp.Or(o.DiskBytes, 8<<30)}
	if s.Port, err = freePorts(host); err != nil {
		return err
	}
	c.monV2, c.monV1 = s.Port, s.V1()
	c.Host = host
	var text strings.Builder
	if err := conf.Execute(&text, s); err != nil {
		return err
	}
	return os.WriteFile(c.Conf, []byte(text.String()), 0o600)
}
