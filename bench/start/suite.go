// Package start measures how containers start. It measures the time from an empty node
// until a container has done its task, over links of several rates and distances. It does
// so with containerd's plain pull, with the stargz snapshotter and with Slipway's node
// agent. It also measures how many bytes come over the wire meanwhile, and how fast the
// containers' file systems are when everything is local.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus). Package tasks
// defines what their containers do. One Slipway serves them to all systems from a network
// namespace behind a veth that is rate-limited at both ends. Each start begins with a new
// containerd on an empty directory. Root only.
//
// Results go to a JSON file (-out). The report can be made again from the file (-from).
// The exit status is 1 if something could not be measured, or if -check finds a target
// missed.
package start

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/netdelay"
)

// options are the options of the command line.
type options struct {
	measure.Options
	rivals, corpus, images string
	systems, tasks         string
	profiles               string
	rates, rtts            string
	wait                   time.Duration
	prepared               string
	estimate               bool
	touch                  string // percentages
	held                   bool
	touchMB                int           // size of the image of the scenario touch in MB
	cycles                 int           // how often a container comes and goes
	watch                  time.Duration // how long the agent watches a container for its profile
	anyLink                bool          // continues even if a link is not as it should be
}

func parse(args []string) (*options, error) {
	o := &options{watch: profileDuration, cycles: cycles, touchMB: touchMB}
	fl := flag.NewFlagSet("bench start", flag.ContinueOnError)
	o.Add(fl, measure.Defaults{Scenarios: usual + "; ready only fills the registry, which start does as well; sequence deploys the versions of each series one after the other, cycles starts and removes a container again and again, and touch has tasks read a portion of an image", Rounds: 3,
		Dir: "the nodes; on the disk to measure, with a short path and not on overlayfs", Quick: "the smaller images, one round: what fits into 25 minutes"})
	fl.StringVar(&o.rivals, "rivals", os.Getenv("SLIPWAY_BENCH_STARGZ"), "`directory` of containerd-stargz-grpc and ctr-remote (default $SLIPWAY_BENCH_STARGZ; neither: stargz is not measured)")
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS)")
	fl.StringVar(&o.images, "images", "", "`images` SERIES/VERSION or SERIES, its last version, separated by commas (default: the last version of each series)")
	fl.StringVar(&o.systems, "systems", "", "`names` of the systems to compare (default: plain, stargz where there is one, slipway where the binary has an agent; in touch also parallel)")
	fl.StringVar(&o.tasks, "tasks", "first", "`first`, second, or both separated by a comma: second is one that nothing was prepared for")
	fl.StringVar(&o.profiles, "profiles", ownProfiles, "what the registry knows of starts: `own` of each image, earlier of the versions before it only, so that it starts as a new version (that takes a -prepared of its own), or both: the agent then takes part twice, also as "+newName)
	fl.StringVar(&o.rates, "rates", "1000,100,20,5", "`rates` of the link in Mbit/s")
	fl.StringVar(&o.rtts, "rtts", "0,20", "added round `trips` in ms; one of them may be above 0")
	fl.StringVar(&o.touch, "touch", "1,10,50,80,100", "`percentages` of the bytes of an image that the tasks of the scenario touch read")
	fl.BoolVar(&o.held, "held", false, "in the scenario touch, repeat the starts of the agent with one connection that gets 1 MiB/s, where there is an added round trip")
	fl.DurationVar(&o.wait, "wait", 90*time.Second, "`time` that a plain pull may need for its bytes alone: longer ones are computed from bytes and rate, and marked")
	fl.StringVar(&o.prepared, "prepared", "", "`directory` that keeps the registry with pushed and optimised images from run to run (default: one in the user's cache)")
	fl.BoolVar(&o.anyLink, "any-link", false, "measure even if a link is not as it should be, as on a busy machine: for a rough look")
	fl.BoolVar(&o.estimate, "estimate", false, "tell how long it will take, and end")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.Command == "" {
		o.Command = measure.Described(fl, "scripts/bench-start.sh",
			[]string{"scenario", "rounds", "images", "systems", "tasks", "profiles", "rates", "rtts", "touch", "wait"}, []string{"quick", "held"})
	}
	o.Scenarios = cmp.Or(o.Scenarios, usual)
	return o, o.validate(fl)
}

// These values say for which images profiles are recorded before anything is measured.
const (
	ownProfiles     = "own"
	earlierProfiles = "earlier"
	bothProfiles    = "both"
)

// usual lists the scenarios that run if none is named.
const usual = "start,bytes,local"

func (o *options) validate(fl *flag.FlagSet) error {
	if o.Quick {
		o.quicken(fl)
	}
	if err := o.Validate(fl); err != nil || o.Output.From != "" {
		return err
	}
	switch {
	case o.corpus == "":
		return errors.New("which images? Give -corpus or SLIPWAY_CORPUS")
	case os.Geteuid() != 0:
		return errors.New("containers, mounts and namespaces need root")
	}
	links, err := o.links()
	if err != nil {
		return err
	}
	if o.held && rttOf(links) == 0 {
		return errors.New("-held needs an added round trip: its proxy adds one")
	}
	if _, err := o.portions(); err != nil {
		return err
	}
	if o.profiles != ownProfiles && o.profiles != earlierProfiles && o.profiles != bothProfiles {
		return fmt.Errorf("no profiles %q; there are %s, %s and %s", o.profiles, ownProfiles, earlierProfiles, bothProfiles)
	}
	for _, t := range strings.Split(o.tasks, ",") {
		if t != firstTask && t != secondTask {
			return fmt.Errorf("no tasks %q; there are %s and %s", t, firstTask, secondTask)
		}
	}
	return nil
}

// quicken reduces the amount of work that the command line does not set.
func (o *options) quicken(fl *flag.FlagSet) {
	given := measure.Given(fl)
	if !given["images"] {
		o.images = "nginx,postgres,redis,python,django"
	}
	if !given["rounds"] {
		o.Rounds = 1
	}
	if !given["wait"] {
		o.wait = 30 * time.Second
	}
}

// link is a rate in Mbit/s and a round trip in ms.
type link struct{ mbit, rttMs int }

func (l link) String() string { return fmt.Sprintf("%d Mbit/s, %d ms", l.mbit, l.rttMs) }

// links returns every rate with every round trip.
func (o *options) links() ([]link, error) {
	rates, err := measure.Numbers(o.rates, 0, 10000)
	if err != nil {
		return nil, err
	}
	rtts, err := measure.Numbers(o.rtts, 0, 10000)
	if err != nil {
		return nil, err
	}
	distant := 0
	var out []link
	for _, rtt := range rtts {
		if rtt > 0 {
			distant++
		}
		for _, rate := range rates {
			if rate == 0 {
				return nil, errors.New("a rate must be above 0")
			}
			out = append(out, link{rate, rtt})
		}
	}
	if distant > 1 {
		return nil, errors.New("only one of the round trips may be above 0")
	}
	return out, nil
}

// rttOf returns the round trip that needs a proxy, or 0 if no round trip needs one.
func rttOf(links []link) int {
	return slices.MaxFunc(links, func(a, b link) int { return a.rttMs - b.rttMs }).rttMs
}

// Suite returns the suite. Beside its flags it has the inner commands delay and peer, which the
// suite runs in the namespace.
func Suite() measure.Suite {
	s := measure.NewSuite("start", "starts of containers with a plain pull, stargz and the node agent", parse, (*options).run)
	measured, inner := s.Run, measure.NewSuite(s.Name, "", parsePeer, (*peer).run).Run
	s.Run = func(ctx context.Context, args []string) (bool, error) {
		if len(args) > 0 && (args[0] == "delay" || args[0] == "peer") {
			return inner(ctx, args)
		}
		return measured(ctx, args)
	}
	return s
}

// peer is one of the two inner commands.
type peer struct {
	command, listen, target string
	rtt                     time.Duration
	held                    int64
}

func parsePeer(args []string) (*peer, error) {
	p := &peer{command: args[0]}
	fl := flag.NewFlagSet(p.command, flag.ContinueOnError)
	fl.StringVar(&p.listen, "listen", "", "address to listen on")
	fl.StringVar(&p.target, "target", "", "address to forward to")
	fl.DurationVar(&p.rtt, "rtt", 0, "round trip to add")
	fl.Int64Var(&p.held, "held", 0, "bytes a second of one connection, which is held to this rate; 0: none is")
	return p, fl.Parse(args[1:])
}

func (p *peer) run(ctx context.Context) (good bool, err error) {
	if p.command == "peer" {
		return true, servePeer(ctx, p.listen)
	}
	return true, serveDelay(ctx, p.listen, &netdelay.Proxy{Target: p.target, RTT: p.rtt, Held: p.held})
}

// run measures or reads earlier results, and reports on them. It reports whether all
// targets are met, or were not to be checked.
func (o *options) run(ctx context.Context) (good bool, err error) {
	met, err := measure.CarryTo(&o.Output, func() (*Results, error) { return o.measure(ctx) }, publish)
	return met || !o.Check, err
}

// publish writes the report and the pictures.
func publish(to *measure.Output, r *Results) (met bool, err error) {
	var verdict strings.Builder
	met = check(&verdict, r)
	return met, to.Publish(marks(), verdict.String(), report(r, verdict.String()), r.Start.pictures())
}

// preparedDir returns the directory in which the registry's data stays.
func (o *options) preparedDir() (string, error) {
	if o.prepared != "" {
		return filepath.Abs(o.prepared)
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "slipway", "startbench"), err
}
