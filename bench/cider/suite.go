// Package cider measures images as volumes on its own Ceph cluster, beside containerd's
// plain pull and the files of Gear. It measures the deployment of one container over the
// images of a corpus, of many containers on one node and on several, the bytes read from
// Ceph, the page cache, and the throughput of applications. It also checks that every
// tree equals the plain one.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus). Package tasks
// defines what their containers do. A bridge leads to the registry and to Ceph. Each node
// is a network namespace with its own link, and has a containerd and an agent that start
// from nothing. Root only.
//
// Results go to a JSON file (-out). The report can be made again from the file (-from).
// The exit status is 1 if something could not be measured, or if -check finds a target
// missed.
package cider

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/ctrnode"
)

// options are the options of the command line.
type options struct {
	measure.Options
	corpus, images   string
	ways, containers string
	nodes            string
	mbit, uplinkMbit int
	light            bool
	diskMB           int
	cpus             float64
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("bench cider", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: strings.Join(names(), ","), Rounds: 5,
		Dir: "the cluster, the registry and the nodes; with a short path and not on overlayfs", Quick: "one round, few images, up to 4 containers on 2 nodes"})
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS)")
	fl.StringVar(&o.images, "images", "", "`images` SERIES/VERSION or SERIES, its last version, separated by commas (default: all for equality, the last version of each series for single)")
	fl.StringVar(&o.ways, "ways", "plain,gear,local,network", "`ways` of a node to its images that are compared")
	fl.StringVar(&o.containers, "containers", "1,2,5,10", "`numbers` of containers that start at once on a node")
	fl.StringVar(&o.nodes, "nodes", "1,2,4", "`numbers` of nodes")
	fl.IntVar(&o.mbit, "mbit", 1000, "`rate` of each node's link in Mbit/s")
	fl.IntVar(&o.uplinkMbit, "uplink", 1000, "`rate` in Mbit/s of what the registry and Ceph together send to all nodes")
	fl.BoolVar(&o.light, "light", false, "end the clock at start-up: containers only start a program of their image, as in the paper")
	fl.IntVar(&o.diskMB, "disk", 0, "`rate` in MB/s at which a node's disk reads, and at which it writes (default: what the machine's disk can; needs cgroup v1)")
	fl.Float64Var(&o.cpus, "cpus", 0, "`number` of processors that a node and its containers may use (default: all)")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-cider.sh",
			[]string{"scenario", "rounds", "images", "ways", "containers", "nodes", "mbit", "uplink", "disk", "cpus"}, []string{"quick", "light"})
	}
	o.Scenarios = cmp.Or(o.Scenarios, strings.Join(names(), ","))
	return o, o.validate(fl)
}

func (o *options) validate(fl *flag.FlagSet) error {
	if o.Quick {
		o.quicken(measure.Given(fl))
	}
	if err := o.Validate(fl); err != nil || o.Output.From != "" {
		return err
	}
	switch {
	case o.corpus == "":
		return errors.New("which images? Give -corpus or SLIPWAY_CORPUS")
	case os.Geteuid() != 0:
		return errors.New("containers, mounts and namespaces need root")
	case o.mbit < 1 || o.uplinkMbit < 1:
		return errors.New("rates must be above 0")
	case o.diskMB < 0 || o.cpus < 0:
		return errors.New("limits of a node must not be negative")
	}
	if name := ceph.Missing(); name != "" {
		return fmt.Errorf("%s is not installed: scripts/setup.sh test", name)
	}
	for _, w := range strings.Split(o.ways, ",") {
		switch w {
		case ctrnode.Plain, ctrnode.Gear, ctrnode.VolumeLocal, ctrnode.VolumeNetwork:
		default:
			return fmt.Errorf("no way %q; there are plain, gear, local and network", w)
		}
	}
	for _, list := range []string{o.containers, o.nodes} {
		if _, err := measure.Numbers(list, 1, 100); err != nil {
			return err
		}
	}
	return nil
}

// setting returns what the command line says of nodes and of the clock.
func (o *options) setting() Setting { return Setting{Light: o.light, DiskMB: o.diskMB, CPUs: o.cpus} }

// quicken reduces the amount of work that the command line does not set.
func (o *options) quicken(given map[string]bool) {
	if !given["rounds"] {
		o.Rounds = 1
	}
	if !given["containers"] {
		o.containers = "1,4"
	}
	if !given["nodes"] {
		o.nodes = "1,2"
	}
}

// Suite returns the suite.
func Suite() measure.Suite {
	return measure.NewSuite("cider", "images as volumes on a Ceph of its own", parse, measure.Measuring(marks(), (*options).measure))
}
