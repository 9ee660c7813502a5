package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/wire"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/mirrors"
	"example.org/slipway/workload/load"
	"example.org/slipway/workload/load/imageset"
)

// loadFlags are the flags of slipway load.
type loadFlags struct {
	o                             load.Options
	upstream                      load.Target
	target, at                    accessFlags
	server                        command.ServerFlags
	sizes, mix, prune, ramp, name string
	patterns                      []string
	iteration, tally              float64
	list, inPlace, quiet, dryRun  bool
	out, page, form               string
}

// accessFlags are credentials and certificates for a registry.
type accessFlags struct {
	user, passwordFile, ca, cert, key string
	insecure, noDocker                bool
}

func loadCommand() *cobra.Command {
	var f loadFlags
	f.server.Builtin = true // the server to prune has to be named
	cmd := &cobra.Command{
		Use:   "load URL",
		Short: "Find out how many images a second a registry serves",
		Long: `Push images of small layers to a registry and pull them again: with one puller, then two, up
to as many as there are batches, and back to one. Every manifest and layer that arrives is
checked against its digest. The rate is counted by this command, not by the registry.

With --upstream the images are pushed to the upstream and pulled from URL, which mirrors it.
With --prune they are removed from the mirror after each pass, so that each pull reaches the
upstream. With --list the command pulls the images that exist instead of making any.

At the end the command prints a report as text, or as JSON with --output json. It also writes
the report as JSON into the file of -o, and as a page into the file of --html. Exit status 3
means that wrong content came, 4 that pulls failed. docs/load.md describes everything.`,
		Example: `  slipway load http://localhost:5000 --images 1500 --iteration-seconds 60 -o slipway.json --html slipway.html
  slipway load http://localhost:8080 --upstream http://localhost:5001 --prefix docker.io/ --prune delete -o through.json
  slipway load http://localhost:5000 --ramp saturate --mix pull=90,push=5,head=4,list=1
  slipway load compare slipway.json other.json --format html -o compared.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.addImages(cmd.Flags())
	f.addRun(cmd.Flags())
	f.addAccess(cmd.Flags())
	cmd.AddCommand(loadPushCommand(), loadReportCommand(), loadCompareCommand())
	return cmd
}

func (f *loadFlags) addSet(fl *pflag.FlagSet) {
	s := &f.o.Set
	fl.IntVar(&s.Images, "images", 100, "number of images to make")
	fl.IntVar(&s.Batches, "batches", 10, "number of disjoint batches of images, whose names contain -0001 and so on")
	fl.IntVar(&s.Blobs, "blobs", 5, "layers of each image")
	fl.StringVar(&f.sizes, "sizes", "2KiB", "sizes of layers: 2KiB, or 2KiB,64KiB in turn, or 2KiB-1MiB, or lognormal:MEDIAN,SIGMA[,LARGEST]")
	fl.Uint64Var(&s.Maker.Seed, "seed", 0, "seed of names and content; equal seeds make equal images")
	fl.Float64Var(&s.Maker.Compressible, "compressible", 0, "share of the content that compression removes, 0 to 1")
	fl.StringVar(&s.Prefix, "repo-prefix", "load/", "prefix of the names of all images that are pushed")
	fl.IntVar(&f.o.PushAtOnce, "push-at-once", 8, "number of images pushed at once")
}

func (f *loadFlags) addImages(fl *pflag.FlagSet) {
	f.addSet(fl)
	fl.StringVar(&f.upstream.URL, "upstream", "", "URL of the registry that the images are pushed to and listed from (default: the one that is measured)")
	fl.StringVar(&f.o.Target.Prefix, "prefix", "", "prefix of names in pulls, for a mirror that needs one, such as docker.io/")
	fl.StringVar(&f.o.Target.Namespace, "ns", "", "send ?ns=NAME with pulls, as containerd does with a mirror")
	fl.BoolVar(&f.list, "list", false, "pull the images that exist, instead of making any")
	fl.BoolVar(&f.o.AllTags, "all-tags", false, "with --list: pull every tag of a repository, not only the first")
	fl.BoolVar(&f.inPlace, "in-place", false, "push nothing, because the images were pushed before")
	fl.StringSliceVar(&f.patterns, "patterns", nil, "regular expressions, one for each puller, that match the names it pulls; * matches all (default: one for each batch)")
}

func (f *loadFlags) addRun(fl *pflag.FlagSet) {
	o := &f.o
	fl.IntVar(&o.Pullers, "pullers", 0, "largest number of pullers (default: the number of patterns; with --ramp saturate 64)")
	fl.StringVar(&f.ramp, "ramp", "up-down", "up-down: one puller more each step, then one less; saturate: more pullers until the rate stops growing; constant: --pullers for one step")
	fl.Float64Var(&f.iteration, "iteration-seconds", 10, "how long a step lasts")
	fl.Float64Var(&f.tally, "tally-seconds", 1, "interval of the counts")
	fl.StringVar(&f.prune, "prune", "none", "how images are removed after each pass: delete (one manifest after another), slipway (all at once, on this machine, see --server-root), ociregistry (by its API), or none")
	fl.StringVar(&f.mix, "mix", "pull=1", "weights of pull, push, head and list")
	fl.IntVar(&o.LayersAtOnce, "layers-at-once", 1, "number of layers that a puller fetches at once")
	fl.BoolVar(&o.Shuffle, "shuffle", false, "pull in another order in each pass")
	fl.BoolVar(&o.Cold, "cold", false, "measure the first pulls, too, instead of pulling everything once beforehand")
	fl.DurationVar(&o.Timeout, "timeout", time.Minute, "limit of the time of a request")
	fl.StringVar(&f.server.Root, "server-root", "", "with --prune slipway: data directory of the server")
	fl.StringVar(&f.server.File, "server-config", "", "with --prune slipway: its configuration file")
	fl.IntVar(&o.PID, "server-pid", 0, "process of the registry on this machine, whose CPU time and memory are measured")
	fl.StringVar(&f.name, "name", "", "name of the registry in reports (default: its host)")
	command.AddPath(fl, &f.out, "out", "file to write the result to, as JSON")
	command.AddForm(fl, &f.form, "output", "json")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would be pushed and pulled, and change nothing; only --list sends requests to a registry")
	fl.StringVar(&f.page, "html", "", "file to write the report to, as a page")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
}

func (f *loadFlags) addAccess(fl *pflag.FlagSet) {
	f.target.add(fl, "", "the registry")
	f.at.add(fl, "upstream-", "the upstream")
}

func (a *accessFlags) add(fl *pflag.FlagSet, prefix, of string) {
	fl.StringVar(&a.user, prefix+"username", "", "user name at "+of+" (default: Docker's credentials)")
	fl.StringVar(&a.passwordFile, prefix+"password-file", "", "file with the password")
	fl.BoolVar(&a.noDocker, prefix+"no-docker-config", false, "do not use Docker's credentials for "+of)
	fl.StringVar(&a.ca, prefix+"ca", "", "file with the CA certificates of "+of)
	fl.StringVar(&a.cert, prefix+"cert", "", "file with a client certificate for "+of)
	fl.StringVar(&a.key, prefix+"key", "", "file with the certificate's key")
	fl.BoolVar(&a.insecure, prefix+"insecure", false, "accept any certificate of "+of)
}

// apply fills in a target.
func (a *accessFlags) apply(t *load.Target) error {
	var err error
	if t.TLS, err = wire.ClientTLS(a.ca, a.cert, a.key); err != nil {
		return err
	}
	t.TLS.InsecureSkipVerify = a.insecure
	t.Username = a.user
	t.DockerConfig = !a.noDocker && a.user == ""
	t.Password, err = command.ReadOptionalSecret(a.passwordFile)
	return err
}

// complete converts flags to options.
func (f *loadFlags) complete(cmd *cobra.Command, url string) (err error) {
	o := &f.o
	o.Target.URL, o.Target.Name, o.Patterns, o.Version = url, f.name, f.patterns, command.LongVersion()
	o.Ramp = load.Ramp(f.ramp)
	o.Step, o.Tally = time.Duration(f.iteration*float64(time.Second)), time.Duration(f.tally*float64(time.Second))
	if f.iteration <= 0 || f.tally <= 0 || f.iteration > 1e6 {
		return command.Usagef("--iteration-seconds and --tally-seconds are more than 0")
	}
	switch {
	case f.list && f.inPlace:
		return command.Usagef("--list and --in-place exclude each other")
	case f.list:
		o.Source = load.Listed
	case f.inPlace:
		o.Source = load.InPlace
	}
	if o.Set.Sizes, err = imageset.ParseSizes(f.sizes); err != nil {
		return err
	}
	if o.Mix, err = load.ParseMix(f.mix); err != nil {
		return err
	}
	if o.Prune, err = load.ParsePrune(f.prune); err != nil {
		return err
	}
	if err := f.target.apply(&o.Target); err != nil {
		return err
	}
	if f.upstream.URL != "" {
		o.Upstream = &f.upstream
		if err := f.at.apply(o.Upstream); err != nil {
			return err
		}
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o.Describe = map[string]string{"url": o.Target.URL}
	cmd.Flags().Visit(func(fl *pflag.Flag) {
		if !strings.HasSuffix(fl.Name, "username") {
			o.Describe[fl.Name] = fl.Value.String()
		}
	})
	return nil
}

func (f *loadFlags) run(cmd *cobra.Command, url string) error {
	if err := f.complete(cmd, url); err != nil {
		return err
	}
	if f.dryRun {
		return f.preview(cmd)
	}
	view := newLoadView()
	if !f.quiet {
		f.o.Progress = view.Show
	}
	measure := func() error {
		res, err := load.Run(cmd.Context(), &f.o)
		view.End()
		if res == nil {
			return err
		}
		return errors.Join(err, f.write(cmd, res), loadVerdict(res, err))
	}
	if f.o.Prune != load.PruneSlipway {
		return measure()
	}
	return command.WithAdmin(cmd, &f.server, false, func(a *admin.Admin) error {
		f.o.PruneMirror = func(ctx context.Context, repositories string) error {
			_, err := a.PruneMirrors(ctx, mirrors.PruneArgs{Pattern: repositories})
			return err
		}
		return measure()
	})
}

// preview prints what would be done.
func (f *loadFlags) preview(cmd *cobra.Command) error {
	f.o.PruneMirror = func(context.Context, string) error { return nil } // nothing is pruned
	p, err := load.DryRun(cmd.Context(), &f.o)
	switch {
	case err != nil:
		return err
	case f.form == "json":
		return p.WriteJSON(cmd.OutOrStdout())
	}
	return p.WriteText(cmd.OutOrStdout())
}

// newLoadView returns a view that shows runs on standard error.
func newLoadView() *load.View {
	width := 0
	if fd := int(os.Stderr.Fd()); term.IsTerminal(fd) {
		width = 80
		if w, _, err := term.GetSize(fd); err == nil && w > 0 {
			width = w
		}
	}
	return load.NewView(os.Stderr, width)
}

// write writes the result to each requested output.
func (f *loadFlags) write(cmd *cobra.Command, res *load.Result) error {
	if f.out != "" {
		if err := writeReport(f.out, func(w *os.File) error { return res.WriteJSON(w) }); err != nil {
			return err
		}
	}
	if f.page != "" {
		if err := writeReport(f.page, func(w *os.File) error { return res.WriteHTML(w) }); err != nil {
			return err
		}
	}
	return writeForm(cmd.OutOrStdout(), res, f.form)
}

// loadVerdict returns the exit status of a complete run.
func loadVerdict(res *load.Result, err error) error {
	switch {
	case res.Wrong() > 0:
		return command.ExitWith(3, fmt.Errorf("wrong content came %d times", res.Wrong()))
	case err == nil && res.Total.Failed+res.Total.NotPruned > 0:
		return command.ExitWith(4, fmt.Errorf("%d operations failed", res.Total.Failed+res.Total.NotPruned))
	}
	return nil
}

// readLoads reads results, and gives them distinct names.
func readLoads(paths []string) ([]*load.Result, error) {
	var out []*load.Result
	for _, path := range paths {
		r, err := readLoad(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		file := strings.TrimSuffix(path, ".json")
		for n := 0; slices.ContainsFunc(out, func(o *load.Result) bool { return o.Name == r.Name }); n++ {
			switch n {
			case 0:
				r.Name = filepath.Base(file)
			case 1:
				r.Name = file
			default:
				r.Name = fmt.Sprintf("%s (%d)", file, n)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

func readLoad(path string) (*load.Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return load.ReadResult(f)
}

// writable is a report that can be written in all formats.
type writable interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
	WriteHTML(io.Writer) error
}

// writeForm writes a report in a format.
func writeForm(w io.Writer, r writable, format string) error {
	switch format {
	case "json":
		return r.WriteJSON(w)
	case "html":
		return r.WriteHTML(w)
	}
	return r.WriteText(w)
}
