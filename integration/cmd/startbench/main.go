// Command startbench measures how containers start: how long it takes from
// nothing on a node until a container has done its task, over links of several
// rates and distances, with the plain pull of containerd, with the stargz
// snapshotter and with Slipway's node agent; how many bytes come over the wire
// for that; and how fast the containers' file systems are when everything is
// local.
//
// The images are OCI layouts SERIES/VERSION below a directory (-corpus); what
// their containers do is in the package tasks. One Slipway serves them to
// everybody from a network namespace behind a veth that is shaped at both ends.
// Each start begins with a new containerd on an empty directory. Root only.
//
// Results go to a file of JSON (-out), from which the report can be made again
// (-from). The exit status is 1 if something could not be measured, or if -check
// finds a target missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/internal/measure"
)

// options are the command line.
type options struct {
	binary, rivals, corpus, images string
	scenarios, systems, tasks      string
	rates, rtts                    string
	rounds                         int
	wait                           time.Duration
	dir, prepared                  string
	quick, check, estimate         bool
	out, from, doc, img            string
	commit, command                string
}

func parse(args []string) (*options, error) {
	o := &options{}
	fl := flag.NewFlagSet("startbench", flag.ContinueOnError)
	fl.StringVar(&o.binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary`: registry and agent (default $SLIPWAY_BIN)")
	fl.StringVar(&o.rivals, "rivals", os.Getenv("SLIPWAY_BENCH_STARGZ"), "`directory` of containerd-stargz-grpc and ctr-remote (default $SLIPWAY_BENCH_STARGZ; neither: stargz is not measured)")
	fl.StringVar(&o.corpus, "corpus", os.Getenv("SLIPWAY_CORPUS"), "`directory` of OCI layouts SERIES/VERSION (default $SLIPWAY_CORPUS)")
	fl.StringVar(&o.images, "images", "", "`images` SERIES/VERSION or SERIES, its last version, separated by commas (default: the last version of each series)")
	fl.StringVar(&o.scenarios, "scenario", "start,bytes,local", "`names` of the scenarios to run, of "+scenarioNames()+"; ready only fills the registry, which start does as well")
	fl.StringVar(&o.systems, "systems", "", "`names` of the systems to compare (default: plain, stargz where there is one, slipway where the binary has an agent)")
	fl.StringVar(&o.tasks, "tasks", "first", "`first`, second, or both separated by a comma: second is one that nothing was prepared for")
	fl.StringVar(&o.rates, "rates", "1000,100,20,5", "`rates` of the link in Mbit/s")
	fl.StringVar(&o.rtts, "rtts", "0,20", "added round `trips` in ms; one of them may be above 0")
	fl.IntVar(&o.rounds, "rounds", 3, "`number` of rounds")
	fl.DurationVar(&o.wait, "wait", 90*time.Second, "`time` that a plain pull may need for its bytes alone: longer ones are computed from bytes and rate, and marked")
	fl.StringVar(&o.dir, "dir", "/var/tmp", "`directory` for the nodes; on the disk to measure, with a short path and not on overlayfs")
	fl.StringVar(&o.prepared, "prepared", "", "`directory` that keeps the registry with pushed and optimised images from run to run (default: one in the user's cache)")
	fl.BoolVar(&o.quick, "quick", false, "the smaller images, one round: what fits into 25 minutes")
	fl.BoolVar(&o.check, "check", false, "compare with the targets")
	fl.BoolVar(&o.estimate, "estimate", false, "tell how long it will take, and end")
	fl.StringVar(&o.out, "out", "", "`file` for the results")
	fl.StringVar(&o.from, "from", "", "`file` of results to report on, instead of measuring")
	fl.StringVar(&o.doc, "doc", "", "Markdown `file` to write the report into, between its marks (default: print it)")
	fl.StringVar(&o.img, "img", "", "`directory` for the pictures")
	fl.StringVar(&o.commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.command, "command", "", "`command` that reproduces the run, for the report")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	if o.command == "" {
		o.command = described(fl)
	}
	return o, o.validate(fl)
}

func (o *options) validate(fl *flag.FlagSet) error {
	if o.quick {
		o.quicken(fl)
	}
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("unknown argument %q", fl.Arg(0))
	case o.rounds < 1:
		return errors.New("-rounds must be above 0")
	case o.from != "":
		return nil
	case o.binary == "":
		return errors.New("which slipway? Give -bin or SLIPWAY_BIN")
	case o.corpus == "":
		return errors.New("which images? Give -corpus or SLIPWAY_CORPUS")
	case os.Geteuid() != 0:
		return errors.New("containers, mounts and namespaces need root")
	}
	if _, err := o.links(); err != nil {
		return err
	}
	for _, t := range strings.Split(o.tasks, ",") {
		if t != firstTask && t != secondTask {
			return fmt.Errorf("no tasks %q; there are %s and %s", t, firstTask, secondTask)
		}
	}
	return nil
}

// quicken chooses less where the command line does not say what.
func (o *options) quicken(fl *flag.FlagSet) {
	given := map[string]bool{}
	fl.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["images"] {
		o.images = "nginx,postgres,redis,python,django"
	}
	if !given["rounds"] {
		o.rounds = 1
	}
	if !given["wait"] {
		o.wait = 30 * time.Second
	}
}

// described is the command line without what is this machine's own business.
func described(fl *flag.FlagSet) string {
	out := "scripts/bench-start.sh"
	fl.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scenario", "rounds", "images", "systems", "tasks", "rates", "rtts", "wait":
			out += " -" + f.Name + " " + f.Value.String()
		case "quick":
			out += " -quick"
		}
	})
	return out
}

// link is a rate in Mbit/s and a round trip in ms.
type link struct{ mbit, rttMs int }

func (l link) String() string { return fmt.Sprintf("%d Mbit/s, %d ms", l.mbit, l.rttMs) }

// links returns every rate with every round trip.
func (o *options) links() ([]link, error) {
	rates, err := numbers(o.rates)
	if err != nil {
		return nil, err
	}
	rtts, err := numbers(o.rtts)
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

func numbers(list string) (out []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 10000 {
			return nil, fmt.Errorf("%q is no number from 0 to 10000", s)
		}
		out = append(out, n)
	}
	return out, nil
}

// rtt is the round trip that needs a proxy; 0: none does.
func rttOf(links []link) int {
	return slices.MaxFunc(links, func(a, b link) int { return a.rttMs - b.rttMs }).rttMs
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := dispatch(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "startbench:", err)
		os.Exit(1)
	}
}

// dispatch tells the command from the two that it runs in the namespace.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && (args[0] == "delay" || args[0] == "peer") {
		fl := flag.NewFlagSet(args[0], flag.ContinueOnError)
		listen := fl.String("listen", "", "address to listen on")
		target := fl.String("target", "", "address to forward to")
		rtt := fl.Duration("rtt", 0, "round trip to add")
		if err := fl.Parse(args[1:]); err != nil {
			return err
		}
		if args[0] == "peer" {
			return servePeer(ctx, *listen)
		}
		return serveDelay(ctx, *listen, *target, *rtt)
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	return o.run(ctx)
}

// errMissed is returned when -check finds a target missed.
var errMissed = errors.New("a target is missed")

// run measures, or reads what was measured, and reports.
func (o *options) run(ctx context.Context) error {
	if o.from != "" {
		r, err := measure.Load[Results](o.from)
		if err != nil {
			return err
		}
		return o.report(r)
	}
	r, err := o.measure(ctx)
	if r == nil {
		return err
	}
	if o.out != "" {
		if old, oldErr := measure.Load[Results](o.out); oldErr == nil {
			r.fill(old)
		} else if !errors.Is(oldErr, os.ErrNotExist) {
			return errors.Join(err, oldErr)
		}
		if err := measure.Save(o.out, r); err != nil {
			return err
		}
	}
	if err != nil { // part of the results: shown, but no document is made of it
		o.doc, o.img = "", ""
	}
	return errors.Join(err, o.report(r))
}

// report writes the report and the pictures.
func (o *options) report(r *Results) error {
	var verdict strings.Builder
	met := check(&verdict, r)
	text := report(r, verdict.String())
	if o.img != "" {
		if err := measure.WritePictures(o.img, r.Start.pictures()); err != nil {
			return fmt.Errorf("write pictures: %w", err)
		}
	}
	if o.doc == "" {
		fmt.Println(text)
	} else {
		doc, err := os.ReadFile(o.doc)
		if err != nil {
			return err
		}
		changed, err := marks().Replace(string(doc), text)
		if err != nil {
			return fmt.Errorf("%s: %w", o.doc, err)
		}
		if err := os.WriteFile(o.doc, []byte(changed), 0o644); err != nil {
			return err
		}
		fmt.Print(verdict.String())
	}
	if o.check && !met {
		return errMissed
	}
	return nil
}

// preparedDir is where the registry's data stay.
func (o *options) preparedDir() (string, error) {
	if o.prepared != "" {
		return filepath.Abs(o.prepared)
	}
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "slipway", "startbench"), err
}
