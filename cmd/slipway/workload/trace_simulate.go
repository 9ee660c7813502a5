package workload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/simulate"
	"example.org/slipway/workload/simulate/table"
	"example.org/slipway/workload/trace/store"
)

func traceSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "simulate",
		Short:   "Try out caches and prefetchers on a trace",
		Example: `  slipway trace simulate cache store --policy lru,gdsf --size 2%,10%`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(traceSimulateCacheCommand(), traceSimulatePrefetchCommand())
	return cmd
}

// simulateFlags are the flags that both simulations have.
type simulateFlags struct {
	zones       []string
	from, to    string
	format, out string
	workers     int
}

// add adds the flags. forms are those of the report besides text.
func (f *simulateFlags) add(cmd *cobra.Command, forms ...string) {
	fl := cmd.Flags()
	fl.StringSliceVar(&f.zones, "zone", nil, "zones to simulate, each by itself (default: all)")
	fl.StringVar(&f.from, "from", "", "leave out requests before this time (RFC 3339 or 2006-01-02)")
	fl.StringVar(&f.to, "to", "", "leave out requests from this time on")
	command.AddForm(fl, &f.format, "format", forms...)
	command.AddPath(fl, &f.out, "out", "file to write (default: standard output)")
	fl.IntVar(&f.workers, "workers", 0, "simulations run at once (default: the number of cores)")
}

// simulateReport can be printed in every form.
type simulateReport interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
	WriteHTML(io.Writer) error
}

// zoneSimulation simulates one zone.
type zoneSimulation func(context.Context, *store.Store, simulate.Window, *simulate.RunOptions) (simulateReport, error)

// run opens the store and writes a report for each zone.
func (f *simulateFlags) run(cmd *cobra.Command, dir string, one zoneSimulation) error {
	w, err := f.window()
	if err != nil {
		return err
	}
	s, err := store.Open(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	zones, err := f.among(s.Zones())
	if err != nil {
		return err
	}
	if f.out == "" {
		return f.each(cmd.Context(), cmd.OutOrStdout(), s, zones, w, one)
	}
	// The output file is not touched before there is something to write.
	var b bytes.Buffer
	if err := f.each(cmd.Context(), &b, s, zones, w, one); err != nil {
		return err
	}
	return output(cmd, f.out, func(w io.Writer) error {
		_, err := b.WriteTo(w)
		return err
	})
}

// window parses the flags that have words as values.
func (f *simulateFlags) window() (w simulate.Window, err error) {
	w.From, w.To, err = parseSpan(f.from, f.to)
	return w, err
}

// among returns the names of the requested zones.
func (f *simulateFlags) among(all []store.Zone) ([]string, error) {
	var names []string
	for _, z := range all {
		names = append(names, z.Name)
	}
	zones := f.zones
	if len(zones) == 0 {
		zones = names
	}
	for _, z := range zones {
		if !slices.Contains(names, z) {
			return nil, fmt.Errorf("there is no zone %q; there are %v", z, names)
		}
	}
	if (f.format == "html" || f.format == "svg") && len(zones) > 1 {
		return nil, fmt.Errorf("a page or a picture shows one zone; choose one of %s with --zone", strings.Join(zones, ", "))
	}
	return zones, nil
}

// each simulates zones one after the other.
func (f *simulateFlags) each(ctx context.Context, out io.Writer, s *store.Store, zones []string, w simulate.Window, one zoneSimulation) error {
	for i, z := range zones {
		read := command.NewProgress("reading " + z)
		run, end := simulating(z)
		w.Zone, w.Progress = z, func(n int64) { read.Show("%d requests", n) }
		rep, err := one(ctx, s, w, &simulate.RunOptions{Workers: f.workers, Progress: run})
		read.End()
		end()
		if err != nil {
			return err
		}
		if i > 0 && f.format == "text" {
			fmt.Fprintln(out)
		}
		if err := f.print(out, rep, i == 0); err != nil {
			return err
		}
	}
	return nil
}

// simulating shows the progress of a simulation from the first call of show on.
func simulating(zone string) (show func(done, total int64), end func()) {
	var p *command.Progress
	show = func(done, total int64) {
		if p == nil {
			p = command.NewProgress("simulating " + zone)
		}
		rate := float64(done) / max(time.Since(p.Start).Seconds(), 1e-3)
		left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second)
		p.Show("%3d %%, %.1f million requests/s, %s left", done*100/max(total, 1), rate/1e6, left)
	}
	return show, func() {
		if p != nil {
			p.End()
		}
	}
}

// print writes the report of a zone. first says that none was written before.
func (f *simulateFlags) print(w io.Writer, r simulateReport, first bool) error {
	switch f.format {
	case "json":
		return r.WriteJSON(w)
	case "html":
		return r.WriteHTML(w)
	}
	switch r := r.(type) {
	case *simulate.CacheReport:
		switch f.format {
		case "csv":
			return table.Caches(w, r, first)
		case "svg":
			_, err := io.WriteString(w, r.SVG())
			return err
		}
	case *simulate.PrefetchReport:
		if f.format == "csv" {
			return table.Prefetchers(w, r, first)
		}
	}
	return r.WriteText(w)
}

// cacheFlags are the flags of slipway trace simulate cache.
type cacheFlags struct {
	simulateFlags
	policies, sizes, ssd       []string
	ssdPolicy, of, split       string
	admit, by, writes, sizesOf string
	writeRate, writeBurst      string
	shards                     int
	perShard                   bool
	seed                       uint64
	rho                        float64
}

func traceSimulateCacheCommand() *cobra.Command {
	var f cacheFlags
	cmd := &cobra.Command{
		Use:   "cache STORE",
		Short: "Show what caches of several policies and sizes would have served",
		Long: `Run the requests for layers of a trace through caches, every policy with every size. The trace
is read once, and all caches are simulated at the same time, on all cores. belady and
belady-size are bounds: policies that know the future.

With --ssd there is a second level below memory. Sizes are given in per cent of what all
layers of the trace take together, or of what was pushed, or in bytes.`,
		Example: `  slipway trace simulate cache store --policy lru,gdsf,belady --size 2%,10%
  slipway trace simulate cache store --policy lru --size 2%,4%,6%,8%,10% --of ingress --ssd 10x,15x,20x --split 100MiB --shards 6
  slipway trace simulate cache store --policy gdsf --size 16GiB --ssd 1TiB --admit second-touch --format html -o report.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], f.zone)
		},
	}
	f.add(cmd, "json", "csv", "html", "svg")
	fl := cmd.Flags()
	fl.StringSliceVar(&f.policies, "policy", []string{"lru", "gdsf"}, "policies of the memory: "+strings.Join(simulate.Policies(), ", ")+", or exec:PROGRAM, a plug-in")
	fl.StringSliceVar(&f.sizes, "size", []string{"2%", "4%", "6%", "8%", "10%"}, "sizes of the memory, in per cent or bytes, of all shards together")
	fl.StringVar(&f.of, "of", "footprint", "what percentages refer to: footprint (what all layers take) or ingress (what was pushed)")
	fl.StringSliceVar(&f.ssd, "ssd", nil, "sizes of the SSD, as multiples of the memory (10x) or in bytes (default: none)")
	fl.StringVar(&f.ssdPolicy, "ssd-policy", "lru", "policy of the SSD")
	fl.StringVar(&f.split, "split", "0", "size from which layers never go into memory; 100MiB is FAST'18's, 0 is none")
	fl.StringVar(&f.admit, "admit", "all", "what may be written to the SSD: all, second-touch or adaptive")
	fl.StringVar(&f.writeRate, "write-rate", "0", "bytes a second that may be written to the SSD; 0 is no limit")
	fl.StringVar(&f.writeBurst, "write-burst", "1GiB", "bytes that may be written to the SSD in one burst after a pause")
	fl.IntVar(&f.shards, "shards", 1, "number of caches that share nothing")
	fl.StringVar(&f.by, "by", "host", "what decides which shard gets a request: host, random or digest")
	fl.BoolVar(&f.perShard, "per-shard", false, "the sizes apply to each shard, not to all together")
	fl.StringVar(&f.writes, "writes", "none", "what a push does to the cache: none, through (fills it) or compat (as in FAST'18's replayer)")
	fl.StringVar(&f.sizesOf, "sizes", "recorded", "sizes of layers: recorded, or model (made up, for a trace without sizes)")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of the model's sizes and of everything random")
	fl.Float64Var(&f.rho, "rho", 0, "correlation of modelled size and popularity, -1 to 1")
	command.CompleteValues(cmd, "policy", true, simulate.Policies()...)
	command.CompleteValues(cmd, "ssd-policy", false, policy.Names()...)
	command.CompleteValues(cmd, "of", false, "footprint", "ingress")
	command.CompleteValues(cmd, "admit", false, "all", "second-touch", "adaptive")
	command.CompleteValues(cmd, "by", false, "host", "random", "digest")
	command.CompleteValues(cmd, "writes", false, "none", "through", "compat")
	command.CompleteValues(cmd, "sizes", false, "recorded", "model")
	return cmd
}

// zone simulates one zone.
func (f *cacheFlags) zone(ctx context.Context, s *store.Store, w simulate.Window, o *simulate.RunOptions) (simulateReport, error) {
	writes, err := simulate.ParseWrites(f.writes)
	if err != nil {
		return nil, err
	}
	if f.sizesOf != "recorded" && f.sizesOf != "model" {
		return nil, command.Usagef("--sizes is %q; there are recorded and model", f.sizesOf)
	}
	model := f.sizesOf == "model"
	if !(f.rho >= -1 && f.rho <= 1) {
		return nil, command.Usagef("--rho is %g; it is from -1 to 1", f.rho)
	}
	if f.shards < 1 {
		return nil, command.Usagef("--shards is %d; it is 1 or more", f.shards)
	}
	if model && writes != simulate.NoWrites {
		return nil, fmt.Errorf("--sizes model is for requests that read: leave out --writes")
	}
	r, err := simulate.LoadCache(ctx, s, w, writes, model)
	if err != nil {
		return nil, err
	}
	if r.Len() == 0 {
		return nil, fmt.Errorf("zone %s has no requests for layers whose size is known", w.Zone)
	}
	sizes := "recorded"
	if model {
		r.UseModel(f.seed, f.rho)
		sizes = fmt.Sprintf("modelled, seed %d, rho %g", f.seed, f.rho)
	}
	configs, err := f.configs(r)
	if err != nil {
		return nil, err
	}
	results, err := simulate.Caches(ctx, r, configs, o)
	if err != nil {
		return nil, err
	}
	return &simulate.CacheReport{
		Zone: w.Zone, Requests: r.Len() - r.Pushes(), Pushes: r.Pushes(), Writes: writes, Layers: len(r.Size),
		Servers: r.Servers(), Footprint: r.Footprint(), Ingress: r.Ingress,
		Skipped: r.Skipped, Sizes: sizes, Of: f.of, Results: results,
	}, nil
}

// configs returns all combinations of policies and sizes.
func (f *cacheFlags) configs(r *simulate.Requests) ([]simulate.CacheConfig, error) {
	base := simulate.CacheConfig{SSDPolicy: f.ssdPolicy, Shards: f.shards, Seed: f.seed}
	var err error
	if base.Admission, err = policy.ParseAdmission(f.admit); err != nil {
		return nil, err
	}
	if base.By, err = simulate.ParseBy(f.by); err != nil {
		return nil, err
	}
	for _, b := range []struct {
		name, text string
		dst        *int64
	}{{"--split", f.split, &base.Split}, {"--write-rate", f.writeRate, &base.WriteRate}, {"--write-burst", f.writeBurst, &base.WriteBurst}} {
		if *b.dst, err = parseByteCount(b.text); err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	whole := r.Footprint()
	switch f.of {
	case "footprint":
	case "ingress":
		if whole = r.Ingress; r.Unsized > 0 {
			return nil, fmt.Errorf("the trace does not have the size of %d pushes; use --of footprint, or sizes in bytes", r.Unsized)
		}
	default:
		return nil, command.Usagef("--of is %q; there are footprint and ingress", f.of)
	}
	ssd := f.ssd
	if len(ssd) == 0 {
		ssd = []string{"0"}
	}
	var out []simulate.CacheConfig
	for _, p := range f.policies {
		for _, size := range f.sizes {
			for _, below := range ssd {
				c := base
				c.Policy = p
				if c.RAM, err = shareOf(size, "%", 0.01, whole); err != nil {
					return nil, command.Usagef("--size: %w", err)
				}
				if c.SSD, err = shareOf(below, "x", 1, c.RAM); err != nil {
					return nil, command.Usagef("--ssd: %w", err)
				}
				if f.perShard {
					if max(c.RAM, c.SSD) > maxByteCount/int64(f.shards) {
						return nil, command.Usagef("--per-shard: %d shards of %d and %d bytes are too much", f.shards, c.RAM, c.SSD)
					}
					c.RAM, c.SSD = c.RAM*int64(f.shards), c.SSD*int64(f.shards)
				}
				if c.RAM <= 0 {
					return nil, command.Usagef("--size: %s of %d bytes is nothing", size, whole)
				}
				out = append(out, c)
			}
		}
	}
	return out, nil
}

// shareOf parses a number with a suffix as a share of the size named whole, and other
// text as bytes.
func shareOf(text, suffix string, unit float64, whole int64) (int64, error) {
	n, ok := strings.CutSuffix(strings.TrimSpace(text), suffix)
	if !ok {
		if v, err := strconv.ParseFloat(n, 64); err == nil && v > 0 && v < leastPlain {
			return 0, fmt.Errorf("%q has no unit; write %s%s for a share, or %sB for bytes", text, n, suffix, n)
		}
		return parseByteCount(text)
	}
	v, err := strconv.ParseFloat(n, 64)
	if err != nil || !(v >= 0) || v > 1e6 {
		return 0, fmt.Errorf("%q is not a share", text)
	}
	if v *= unit * float64(whole); v < maxByteCount {
		return int64(v), nil
	}
	return 0, fmt.Errorf("%s of %d bytes is too much", text, whole)
}

// leastPlain is the smallest number of bytes of a cache that is accepted without a unit.
// A user who writes a smaller number means a share.
const leastPlain = 1 << 20

// maxByteCount is larger than any real number of bytes, and sums of a few such numbers do
// not overflow.
const maxByteCount = 1 << 60

// parseByteCount parses a number of bytes with a unit of 1000 (MB) or 1024 (MiB), or
// without a unit.
func parseByteCount(text string) (int64, error) {
	s := strings.TrimSpace(text)
	digits := strings.TrimRight(s, "kKMGTPiB")
	v, err := strconv.ParseFloat(digits, 64)
	unit, ok := map[string]float64{
		"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
	}[s[len(digits):]]
	if err != nil || !ok || !(v >= 0) || v*unit >= maxByteCount {
		return 0, fmt.Errorf("%q is not a number of bytes; write 1500, 100MB or 16GiB", text)
	}
	return int64(v * unit), nil
}

// prefetchFlags are the flags of slipway trace simulate prefetch.
type prefetchFlags struct {
	simulateFlags
	algorithms []string
	lm, ml     []time.Duration
	pair       string
	session    time.Duration
	online     bool
	precision  float64
	eager      string
	rate       string
	burst      string
}

func traceSimulatePrefetchCommand() *cobra.Command {
	var f prefetchFlags
	hours := []time.Duration{time.Hour, 12 * time.Hour, 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "prefetch STORE",
		Short: "Show what prefetchers would have fetched, and how much of it in vain",
		Long: `Run the requests for manifests and layers of a trace through prefetchers.

algorithm1 is the prefetcher of FAST'18: when a client requests a manifest of a repository, it
fetches the layers that others pushed there within --lm, and keeps them for --ml. manifest
fetches those layers of the manifest that the client has not fetched before. It learns the
layers of a manifest from what clients request after it.`,
		Example: `  slipway trace simulate prefetch store --lm 1h,12h,24h --ml 1h,12h,24h
  slipway trace simulate prefetch store --algorithm manifest --ml 10m --zone dal09 --format json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], f.zone)
		},
	}
	f.add(cmd, "json", "csv", "html")
	fl := cmd.Flags()
	fl.StringSliceVar(&f.algorithms, "algorithm", simulate.Prefetchers(), "prefetchers: "+strings.Join(simulate.Prefetchers(), ", "))
	fl.DurationSliceVar(&f.lm, "lm", hours, "how long a pushed layer counts as new (LMthresh)")
	fl.DurationSliceVar(&f.ml, "ml", hours, "how long a prefetched layer is kept (MLthresh)")
	fl.StringVar(&f.pair, "pair", "digest", "how a pushed layer is recognised in pulls: digest, size (same repository and size) or near (within 1000 bytes)")
	fl.DurationVar(&f.session, "session", time.Minute, "how long after a manifest a client's requests for layers belong to it")
	fl.BoolVar(&f.online, "online", false, "let the manifest prefetcher know only the layers that occurred before")
	fl.Float64Var(&f.precision, "precision", 0.1, "the manifest prefetcher ignores repositories of which less than this share of the prefetched layers is used; negative: it ignores none")
	fl.StringVar(&f.eager, "eager", "0", "the manifest prefetcher fetches layers larger than this only when the client requests its first layer; 0: all when it requests the manifest")
	fl.StringVar(&f.rate, "rate", "0", "bytes a second that the manifest prefetcher may fetch; 0 is no limit")
	fl.StringVar(&f.burst, "burst", "1GiB", "bytes that the manifest prefetcher may fetch in one burst after a pause")
	return cmd
}

// zone simulates one zone.
func (f *prefetchFlags) zone(ctx context.Context, s *store.Store, w simulate.Window, o *simulate.RunOptions) (simulateReport, error) {
	pair, err := simulate.ParsePair(f.pair)
	if err != nil {
		return nil, err
	}
	m := policy.ManifestsOptions{Precision: f.precision}
	if m.Eager, err = parseByteCount(f.eager); err != nil {
		return nil, command.Usagef("--eager: %w", err)
	}
	if m.Rate, err = parseByteCount(f.rate); err != nil {
		return nil, command.Usagef("--rate: %w", err)
	}
	if m.Burst, err = parseByteCount(f.burst); err != nil {
		return nil, command.Usagef("--burst: %w", err)
	}
	if f.session <= 0 {
		return nil, command.Usagef("--session is %s; it is more than 0", f.session)
	}
	if !(f.precision <= 1) {
		return nil, command.Usagef("--precision is %g; it is a share of at most 1", f.precision)
	}
	if m.Rate > 0 && m.Burst == 0 {
		return nil, command.Usagef("--rate needs a --burst: what does not fit into it is never fetched")
	}
	p, err := simulate.LoadPrefetch(ctx, s, w, pair, f.session)
	if err != nil {
		return nil, err
	}
	if p.Len() == 0 {
		return nil, fmt.Errorf("zone %s has no requests for manifests and layers whose client and size are known; %d lack one of them", w.Zone, p.Skipped)
	}
	var configs []simulate.PrefetchConfig
	for _, a := range f.algorithms {
		lms := f.lm
		if a == simulate.Manifest {
			lms = []time.Duration{0} // this algorithm has no such threshold
		}
		for _, lm := range lms {
			for _, ml := range f.ml {
				configs = append(configs, simulate.PrefetchConfig{Algorithm: a, LM: lm, ML: ml, Online: f.online, Manifests: m})
			}
		}
	}
	results, err := simulate.Prefetch(ctx, p, configs, o)
	if err != nil {
		return nil, err
	}
	return &simulate.PrefetchReport{
		Zone: w.Zone, Requests: p.Len(), Manifests: p.Manifests(), Skipped: p.Skipped,
		Pair: pair.String(), NoDigest: p.NoDigest, Session: f.session, Results: results,
	}, nil
}
