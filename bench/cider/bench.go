package cider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/ceph"
	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
)

const (
	// buildTimeout bounds the building of one image's volumes.
	buildTimeout = 10 * time.Minute
	// diskBytes is the size of Ceph's disk, a sparse file.
	diskBytes = 60 << 30
	// These are the namespaces of volumes and of clones, and the registry's port.
	namespace    = "images"
	clones       = "clones"
	registryPort = "5000"
	// agentMetrics is an address on each node's own loopback.
	agentMetrics = "127.0.0.1:9102"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o        *options
	all      corpus.Set
	net      *lan.LAN
	links    []*lan.Node
	cluster  *ceph.Cluster
	conf     string // the nodes' configuration of the cluster
	registry *ctrnode.Registry
	built    map[string]*ctrnode.VolumeStatus // the volumes of pushed images, by SERIES/VERSION
	results  *Results
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []measure.Scenario[*bench] {
	return []measure.Scenario[*bench]{{Name: "equality", Run: runEquality}, {Name: "series", Run: runSeries}, {Name: "single", Run: runSingle},
		{Name: "node10", Run: runNode10}, {Name: "nodes", Run: runNodes}, {Name: "pagecache", Run: runPageCache}, {Name: "throughput", Run: runThroughput}}
}

func names() (list []string) {
	for _, s := range scenarios() {
		list = append(list, s.Name)
	}
	return list
}

// measure runs the scenarios. It returns no results if none was begun.
func (o *options) measure(ctx context.Context) (r *Results, err error) {
	list, err := measure.Choose(scenarios(), o.Scenarios)
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, results: &Results{}, built: map[string]*ctrnode.VolumeStatus{}}
	if b.all, err = corpus.Read(o.corpus); err != nil {
		return nil, err
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "swc") // sockets are below it: a short path
	if err != nil {
		return nil, err
	}
	b.Bench = o.On(binary, dir)
	defer func() { err = errors.Join(err, b.clear()) }()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	return b.results, measure.RunAll(ctx, b, list, nil)
}

// prepare starts what all scenarios share.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.net, err = lan.New(ctx); err != nil {
		return err
	}
	if err := b.net.Uplink(ctx, b.o.uplinkMbit); err != nil {
		return err
	}
	b.Logf("starting Ceph")
	b.cluster, err = ceph.Start(ctx, b.makeDir(), &ceph.Options{Host: b.net.Addr, DiskBytes: diskBytes, Namespaces: []string{namespace, clones}})
	if err != nil {
		return err
	}
	if b.conf, err = b.cluster.ClientConf(""); err != nil {
		return err
	}
	b.registry, err = b.startRegistry(ctx, registryPort, namespace, clones, "both")
	return err
}

// makeDir makes a directory below the directory of the bench.
func (b *bench) makeDir() string {
	dir := b.NewDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Logf("%v", err) // what uses it fails
	}
	return dir
}

// startRegistry starts a registry on an empty directory.
func (b *bench) startRegistry(ctx context.Context, port, namespace, clones, fs string) (*ctrnode.Registry, error) {
	return ctrnode.StartRegistry(ctx, ctrnode.RegistryOptions{Dir: b.makeDir(), Binary: b.Binary, Addr: b.net.Addr + ":" + port, TLS: true, FS: fs,
		Ceph: b.cluster.Conf, User: "admin", Keyring: filepath.Join(b.cluster.Dir, "keyring"), Pool: b.cluster.Pool, Namespace: namespace, Clones: clones})
}

// clear ends everything and removes the directory.
func (b *bench) clear() error {
	var errs []error
	if b.registry != nil {
		errs = append(errs, b.registry.Stop())
	}
	if b.cluster != nil {
		errs = append(errs, b.cluster.Stop())
	}
	if b.net != nil {
		errs = append(errs, b.net.Close())
	}
	return errors.Join(append(errs, b.Close())...)
}

// chosen returns the images of a scenario: the images of the command line or, without
// any, the last version of each of the given series that the corpus has. If series is
// nil, all series count.
func (b *bench) chosen(series []string) ([]*corpus.Image, error) {
	wanted := b.all.Series()
	if series != nil {
		had := wanted
		wanted = slices.DeleteFunc(slices.Clone(series), func(s string) bool { return !slices.Contains(had, s) })
		if len(wanted) == 0 {
			wanted = had[:min(len(had), 2)]
		}
	}
	if b.o.images != "" {
		wanted = strings.Split(b.o.images, ",")
	}
	return b.all.Choose(wanted)
}

// ways returns the ways that are compared.
func (b *bench) ways() []string { return strings.Split(b.o.ways, ",") }

// task returns what the containers of an image do: the task of its series, or else its own command.
func task(im *corpus.Image) tasks.Task {
	if t, ok := tasks.First(im.Series); ok {
		return t
	}
	return tasks.Task{Series: im.Series, Name: "runs its own command", Timeout: time.Minute}
}

// timedTask returns what containers do until the clock of a deployment ends.
func (b *bench) timedTask(im *corpus.Image) tasks.Task {
	if t, ok := tasks.Light(im.Series); ok && b.o.light {
		return t
	}
	return task(im)
}

// ref returns the name of an image at a registry.
func ref(r *ctrnode.Registry, im *corpus.Image) string {
	return r.Addr + "/" + im.Repo() + ":" + im.Version
}

// push pushes an image to a registry and waits until its volumes are built.
func (b *bench) push(ctx context.Context, r *ctrnode.Registry, im *corpus.Image, fs ...string) (*ctrnode.VolumeStatus, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(tool.Dir(), "crane"), "push", "--insecure", im.Dir, ref(r, im)).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("push %s: %w: %s", im, err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	st, err := ctrnode.AwaitBuilt(ctx, func(ctx context.Context) (*ctrnode.VolumeStatus, error) {
		return r.Volumes(ctx, im.Repo(), im.Digest)
	}, fs...)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w; the registry printed:\n%s", im, err, r.Log())
	}
	return st, nil
}

// ready makes sure that the bench's registry holds images, with volumes in both file systems.
func (b *bench) ready(ctx context.Context, images []*corpus.Image) error {
	for _, im := range images {
		if b.built[im.String()] != nil {
			continue
		}
		b.Logf("building the volumes of %s", im)
		st, err := b.push(ctx, b.registry, im, "ext4", "erofs")
		if err != nil {
			return err
		}
		b.built[im.String()] = st
	}
	return nil
}

// node starts a node on the i-th link, which it makes if necessary.
func (b *bench) node(ctx context.Context, way string, i int) (*ctrnode.Node, error) {
	for len(b.links) <= i {
		l, err := b.net.Join(ctx)
		if err != nil {
			return nil, err
		}
		if err := l.Shape(ctx, b.o.mbit); err != nil {
			return nil, err
		}
		b.links = append(b.links, l)
	}
	o := ctrnode.Options{Dir: b.NewDir(), NewDisk: true, Binary: b.Binary, Way: way, Net: b.links[i], Registries: []string{b.registry.Addr}, CA: b.registry.CA,
		Limits: &ctrnode.Limits{CPUs: b.o.cpus, DiskRate: int64(b.o.diskMB) * 1e6}, Only: true, Metrics: agentMetrics, Agent: "fetch: {background: false}\n"}
	if way == ctrnode.VolumeLocal || way == ctrnode.VolumeNetwork {
		o.Ceph = b.conf
	}
	return ctrnode.Start(ctx, o)
}

// containerID returns an id that no other container of this machine has.
func containerID() string { return fmt.Sprintf("cider-%016x", rand.Uint64()) }
