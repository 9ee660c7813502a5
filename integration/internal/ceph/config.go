package ceph

import (
	"cmp"
	"fmt"

	"example.org/slipway/internal/cephseed"
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

// configure chooses the ports and writes the configuration.
func (c *Cluster) configure(o *Options) error {
	host := cmp.Or(o.Host, "127.0.0.1")
	port, err := freePorts(host)
	if err != nil {
		return err
	}
	c.Host = host
	c.seed = &cephseed.Seed{Dir: c.Dir, Host: host, MonV2: port, MonV1: port + 1, DiskBytes: cmp.Or(o.DiskBytes, 8<<30), Socket: "$name.asok", Run: c.Run,
		Global: fmt.Sprintf(global, port+10, port+99), Client: client}
	if err := c.seed.Configure(); err != nil {
		return err
	}
	c.FSID = c.seed.FSID
	return nil
}

const (
	// global bounds the ports of the OSD, which are next to the monitor's ports.
	global = `ms_bind_port_min = %d
ms_bind_port_max = %d
osd_scrub_load_threshold = 0.001
# Who was killed counts as a watcher for half a minute by default; clients say that they
# are there more often than by default, too, see objecter_tick_interval.
osd_client_watch_timeout = 6
# That a disk is full is told every five seconds by default.
osd_mon_report_interval = 1
mgr_initial_modules =
`
	client = `admin_socket =
objecter_tick_interval = 1
# What this package asks must not wait for ever for a cluster that was killed.
rados_osd_op_timeout = 20
client_mount_timeout = 20
`
)
