package workload

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/trace/store"
)

// planFlags are the flags of slipway plan.
type planFlags struct {
	simulateFlags
	trace, of, latency, growth string
	homes                      bool
	sizes, ssd                 []string
	backend, ramTier, ssdTier  string
	profile                    string
	admit, network             string
	large, sizesOf             string
	rho                        float64
	c                          simulate.PlanConfig
	cpuRequest, cpuMiss        time.Duration
}

func planCommand() *cobra.Command {
	f := planFlags{}
	f.c.Replica = simulate.DefaultReplica()
	cmd := &cobra.Command{
		Use:   "plan STORE",
		Short: "Work out from a trace how much memory and disk and how many replicas a registry needs",
		Long: `Try caches of many sizes on the requests of a trace, with the registry's own policies. Report
for each what it would serve, how long layers would take, and what the object store would have
to send; and how many replicas the busiest minute needs. One size is recommended: the cheapest
that reaches the wanted latency, or else the size beyond which more memory brings little. The
report also lists the assumptions, and what the trace does not show.`,
		Example: `  slipway plan store --latency p99=500ms --growth 2x
  slipway plan --trace store --zone dal --backend 20ms/100MB --replicas-max 3 --json
  slipway plan store --profile tiers.json --format html -o plan.html`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := f.store(args)
			if err != nil {
				return err
			}
			return f.run(cmd, dir, f.zone)
		},
	}
	f.add(cmd, "json", "html")
	f.addCache(cmd)
	f.addReplica(cmd)
	return cmd
}

// addCache adds the flags for caches and latencies.
func (f *planFlags) addCache(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.trace, "trace", "", "store of traces, instead of the argument")
	fl.StringVar(&f.latency, "latency", "", "wanted latency of layers, such as mean=50ms or p99=500ms")
	fl.StringVar(&f.growth, "growth", "1x", "load that the registry shall carry, as a multiple of the trace's")
	fl.StringSliceVar(&f.sizes, "size", []string{"0.5%", "1%", "2%", "4%", "6%", "8%", "10%", "15%", "20%"}, "sizes of the memory to try, in per cent or bytes, of all replicas together")
	fl.StringVar(&f.of, "of", "ingress", "what percentages refer to: ingress (what was pushed; or footprint if nothing was, or if its size is not known) or footprint (what all layers take)")
	fl.StringSliceVar(&f.ssd, "ssd", []string{"0", "10x"}, "sizes of the SSD to try, as multiples of the memory (10x) or in bytes")
	fl.StringVar(&f.c.Policy, "ram-policy", "gdsf", "policy of the memory: "+strings.Join(policy.Names(), ", "))
	fl.StringVar(&f.c.SSDPolicy, "ssd-policy", "lru", "policy of the SSD")
	fl.StringVar(&f.admit, "admit", "all", "what may be written to the SSD: all or second-touch")
	command.CompleteValues(cmd, "ram-policy", false, policy.Names()...)
	command.CompleteValues(cmd, "ssd-policy", false, policy.Names()...)
	command.CompleteValues(cmd, "of", false, "ingress", "footprint")
	command.CompleteValues(cmd, "admit", false, "all", "second-touch")
	fl.StringVar(&f.large, "large", "", "size from which layers never go into memory (default: 100MiB, and at most an eighth of the memory)")
	fl.StringVar(&f.ramTier, "ram-tier", "", "time that a layer takes from memory, written as for --backend")
	fl.StringVar(&f.ssdTier, "ssd-tier", "", "time that a layer takes from the SSD, written as for --backend")
	fl.StringVar(&f.backend, "backend", "", "time that a layer takes from the object store, as latency/bytes a second, such as 20ms/100MB (default 70ms/100MB)")
	fl.StringVar(&f.profile, "profile", "", "JSON file of measured times of ram, ssd and backend, see docs/capacity.md")
	fl.Float64Var(&f.c.RAMCost, "ram-cost", simulate.DefaultRAMCost, "cost of a byte of memory, in bytes of SSD")
	fl.Float64Var(&f.c.MaxDriveWrites, "drive-writes", simulate.DefaultDriveWrites, "how often a day the whole SSD may be written")
	fl.StringVar(&f.sizesOf, "sizes", "recorded", "sizes of layers: recorded, or model (made up, for a trace without sizes)")
	fl.Uint64Var(&f.c.Seed, "seed", 1, "seed of the model's sizes and of everything random")
	fl.Float64Var(&f.rho, "rho", 0, "correlation of modelled size and popularity, -1 to 1")
}

// addReplica adds the flags for servers.
func (f *planFlags) addReplica(cmd *cobra.Command) {
	fl, r := cmd.Flags(), &f.c.Replica
	fl.IntVar(&f.c.MaxReplicas, "replicas-max", 16, "largest number of replicas")
	fl.BoolVar(&f.homes, "homes", true, "replicas read layers from their digest homes")
	fl.Float64Var(&r.Cores, "cores", r.Cores, "cores of a replica")
	fl.StringVar(&f.network, "network", "1.25GB", "rate of a replica's network, in bytes a second")
	fl.Float64Var(&r.Busy, "busy", r.Busy, "share of cores and network that may be used in the peak minute")
	fl.IntVar(&r.Spare, "spare", r.Spare, "number of replicas that may fail")
	fl.DurationVar(&f.cpuRequest, "cpu-request", seconds(r.RequestCPU), "CPU time of a request")
	fl.DurationVar(&f.cpuMiss, "cpu-miss", seconds(r.MissCPU), "CPU time that a request to the object store takes in addition")
	fl.Float64Var(&r.GBCPU, "cpu-gb", r.GBCPU, "seconds of CPU time for each GB sent")
	fl.Float64Var(&r.MissGBCPU, "cpu-miss-gb", r.MissGBCPU, "seconds of CPU time that each GB fetched takes in addition")
	fl.Float64Var(&r.PushGBCPU, "cpu-push-gb", r.PushGBCPU, "seconds of CPU time for each GB pushed")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// store returns the directory that was given, by an argument or by a flag.
func (f *planFlags) store(args []string) (string, error) {
	dir := f.trace
	if len(args) == 1 {
		dir = args[0]
	}
	if dir == "" || len(args) == 1 && f.trace != "" {
		return "", command.Usagef("name one store of traces, as the argument or by --trace")
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s is a file; make a store of traces of a log: slipway trace import %s -o STORE", dir, dir)
	}
	return dir, nil
}

// zone plans for one zone.
func (f *planFlags) zone(ctx context.Context, s *store.Store, w simulate.Window, o *simulate.RunOptions) (simulateReport, error) {
	if f.sizesOf != "recorded" && f.sizesOf != "model" {
		return nil, command.Usagef("--sizes is %q; there are recorded and model", f.sizesOf)
	}
	if !(f.rho >= -1 && f.rho <= 1) {
		return nil, command.Usagef("--rho is %g; it is from -1 to 1", f.rho)
	}
	c, err := f.config()
	if err != nil {
		return nil, err
	}
	model := f.sizesOf == "model"
	r, err := simulate.LoadCache(ctx, s, w, simulate.NoWrites, model)
	if err != nil {
		return nil, err
	}
	if r.Len() == 0 {
		return nil, fmt.Errorf("zone %s has no requests for layers whose size is known", w.Zone)
	}
	a, err := simulate.LoadArrivals(ctx, s, w)
	if err != nil {
		return nil, err
	}
	if model {
		r.UseModel(c.Seed, f.rho)
	}
	if c.Curves, err = f.curves(r, c.Growth); err != nil {
		return nil, err
	}
	p, err := simulate.MakePlan(ctx, w.Zone, r, a, c, o)
	if err != nil {
		return nil, err
	}
	if model {
		p.SizesFrom(fmt.Sprintf("modelled, seed %d, rho %g", c.Seed, f.rho))
	}
	return p, nil
}

// config parses the flags that have words as values.
func (f *planFlags) config() (simulate.PlanConfig, error) {
	c := f.c
	fail := func(err error) (simulate.PlanConfig, error) { return c, err }
	var err error
	if c.Goal, err = simulate.ParseGoal(f.latency); err != nil {
		return fail(command.Usagef("--latency: %w", err))
	}
	if c.Growth, err = strconv.ParseFloat(strings.TrimSuffix(f.growth, "x"), 64); err != nil || !(c.Growth > 0) {
		return fail(command.Usagef("--growth is %q; write 2x or 1.5x", f.growth))
	}
	// The registry's adaptive admission depends on its write budget. Without a budget, it
	// is the same as all.
	if c.Admission, err = policy.ParseAdmission(f.admit); err != nil || c.Admission == policy.Adaptive {
		return fail(command.Usagef("--admit is %q; there are all and second-touch", f.admit))
	}
	c.NoHomes = !f.homes
	network, err := parseByteCount(strings.TrimSuffix(f.network, "/s"))
	if err != nil {
		return fail(command.Usagef("--network: %w", err))
	}
	c.Replica.Bandwidth = float64(network)
	c.Replica.RequestCPU, c.Replica.MissCPU = f.cpuRequest.Seconds(), f.cpuMiss.Seconds()
	c.Split = simulate.DefaultSplit
	if f.large != "" {
		n, err := parseByteCount(f.large)
		if err != nil {
			return fail(command.Usagef("--large: %w", err))
		}
		c.Split = func(int64) int64 { return n }
	}
	c.Model, err = f.model()
	return c, err
}

// model returns how long layers take. It combines known values, the profile and the flags
// for a tier.
func (f *planFlags) model() (simulate.Model, error) {
	m := simulate.DefaultModel()
	if f.profile != "" {
		file, err := os.Open(f.profile)
		if err != nil {
			return m, err
		}
		defer file.Close()
		if err := m.ReadModel(file); err != nil {
			return m, fmt.Errorf("%s: %w", f.profile, err)
		}
	}
	for _, t := range []struct {
		flag, text string
		to         *simulate.Tier
	}{{"--ram-tier", f.ramTier, &m.RAM}, {"--ssd-tier", f.ssdTier, &m.SSD}, {"--backend", f.backend, &m.Backend}} {
		if t.text == "" {
			continue
		}
		latency, rate, _ := strings.Cut(t.text, "/")
		d, err := time.ParseDuration(latency)
		if err != nil || d < 0 {
			return m, fmt.Errorf("%s is %q; write 20ms or 20ms/100MB", t.flag, t.text)
		}
		*t.to = simulate.Tier{Latency: d.Seconds() * 1e3}
		if rate == "" {
			continue
		}
		n, err := parseByteCount(strings.TrimSuffix(rate, "/s"))
		if err != nil {
			return m, fmt.Errorf("%s: %w", t.flag, err)
		}
		t.to.Bandwidth = float64(n)
	}
	return m, nil
}

// curves returns the sizes to try, one list for each size of the SSD.
func (f *planFlags) curves(r *simulate.Requests, growth float64) ([][]simulate.Size, error) {
	whole := r.Ingress
	switch {
	case f.of != "ingress" && f.of != "footprint":
		return nil, command.Usagef("--of is %q; there are footprint and ingress", f.of)
	case f.of == "footprint" || whole == 0 || r.Unsized > 0: // the ingress is not known completely
		whole = r.Footprint()
	}
	whole = int64(float64(whole) * growth)
	var out [][]simulate.Size
	for _, below := range f.ssd {
		var curve []simulate.Size
		for _, size := range f.sizes {
			var s simulate.Size
			var err error
			if s.RAM, err = shareOf(size, "%", 0.01, whole); err != nil {
				return nil, command.Usagef("--size: %w", err)
			}
			if s.SSD, err = shareOf(below, "x", 1, s.RAM); err != nil {
				return nil, command.Usagef("--ssd: %w", err)
			}
			curve = append(curve, s)
		}
		out = append(out, curve)
	}
	return out, nil
}
