package reproduce

import "slices"

// Part is what can be measured by itself.
type Part struct {
	Name string
	// Suite is the suite of the benchmark program that measures the part, and Args are its
	// arguments. Without a suite this suite measures it.
	Suite string
	Args  []string
	// Ceph says that the part needs a binary with the driver rbd.
	Ceph bool
	// Needs says what must be there, and Minutes is about how long the part takes on two cores.
	Needs   string
	Minutes int
}

// needsCorpus is what parts with real images need.
const needsCorpus = "root, and `SLIPWAY_CORPUS`, a directory of OCI layouts SERIES/VERSION"

// Parts returns all parts. None takes more than 40 minutes.
func Parts() []Part {
	starts := []string{"-images", "nginx,postgres,redis,python,django,tomcat", "-rounds", "1", "-rtts", "0", "-wait", "30s"}
	ceph := func(scenario string, minutes int, args ...string) Part {
		return Part{Name: "cider-" + scenario, Suite: "cider", Args: append([]string{"-scenario", scenario, "-rounds", "2"}, args...), Ceph: true,
			Needs: needsCorpus + "; Ceph's daemons", Minutes: minutes}
	}
	// As in the paper: the clock ends at start-up, links have 10 Gbit/s, and disks are hard disks. Nodes share
	// this machine's two processors: four nodes have a quarter each, and Ceph the rest.
	likeCider := []string{"-light", "-mbit", "10000", "-uplink", "10000", "-disk", "120"}
	return []Part{
		{Name: partTraces, Needs: "4 GB of disk", Minutes: 3},
		{Name: partCaches, Needs: "4 GB of disk; for the real sample `SLIPWAY_TRACES`", Minutes: 10},
		{Name: "fig16", Suite: "tiers", Args: []string{"-scenario", "fig16"}, Needs: "root, 12 GB of disk", Minutes: 6},
		{Name: "gear-storage", Suite: "gear", Args: []string{"-scenario", "storage"}, Needs: needsCorpus, Minutes: 10},
		{Name: "gear-convert", Suite: "gear", Args: []string{"-scenario", "convert"}, Needs: needsCorpus, Minutes: 5},
		{Name: "gear-bytes", Suite: "start", Args: []string{"-scenario", "bytes"}, Needs: needsCorpus, Minutes: 25},
		{Name: "gear-start", Suite: "start", Args: append([]string{"-scenario", "start"}, starts...), Needs: needsCorpus, Minutes: 35},
		{Name: "gear-sequence", Suite: "start", Args: []string{"-scenario", "sequence", "-images", "tomcat,postgres,redis", "-rtts", "0", "-wait", "30s"}, Needs: needsCorpus, Minutes: 35},
		{Name: "gear-cycles", Suite: "start", Args: []string{"-scenario", "cycles"}, Needs: needsCorpus, Minutes: 5},
		{Name: "gear-local", Suite: "start", Args: []string{"-scenario", "local", "-rounds", "1"}, Needs: needsCorpus, Minutes: 15},
		{Name: "ociregistry", Suite: "mirrors", Args: []string{"-scenario", "load", "-rounds", "2", "-step", "4s"},
			Needs: "a Distribution 3 and an Ociregistry, as docs/bench-mirrors.md says", Minutes: 15},
		ceph("single", 20, likeCider...), ceph("node10", 15, likeCider...), ceph("nodes", 25, append(slices.Clone(likeCider), "-cpus", "0.25")...), ceph("pagecache", 5), ceph("throughput", 6),
	}
}

// partByName returns a part, nil if there is none of the name.
func partByName(name string) *Part {
	for _, p := range Parts() {
		if p.Name == name {
			return &p
		}
	}
	return nil
}
