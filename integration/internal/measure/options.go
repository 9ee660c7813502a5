package measure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Main runs a benchmark program: it reads the command line, measures until it is done or
// interrupted, and ends the process, with status 2 where the command line is wrong, and
// with 1 on an error or where not all is well.
func Main[O any](name string, parse func(args []string) (O, error), run func(o O, ctx context.Context) (good bool, err error)) {
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	good, err := run(o, ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	if err != nil || !good {
		os.Exit(1)
	}
}

// Options are what the command lines of the programs have in common.
type Options struct {
	// Binary is the slipway to measure, Scenarios the names of the chosen ones.
	Binary, Scenarios string
	// Dir gets the directory that everything is done in.
	Dir    string
	Rounds int
	// Quick is a quick look; Check compares with the targets.
	Quick, Check bool
	// Commit and Command are for the report.
	Commit, Command string
	Output          Output
}

// Defaults are what a program says of the common flags.
type Defaults struct {
	Scenarios string // names of all
	Rounds    int    // unless said otherwise
	Dir       string // what the directory is for
	Quick     string // what a quick look leaves out
}

// Add makes the flags.
func (o *Options) Add(fl *flag.FlagSet, d Defaults) {
	fl.StringVar(&o.Binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.Scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+d.Scenarios+")")
	fl.StringVar(&o.Dir, "dir", "/var/tmp", "`directory` for "+d.Dir)
	fl.IntVar(&o.Rounds, "rounds", d.Rounds, "`number` of rounds of what is measured in rounds")
	fl.BoolVar(&o.Quick, "quick", false, "a quick look: "+d.Quick)
	fl.BoolVar(&o.Check, "check", false, "compare with the targets")
	fl.StringVar(&o.Commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.Command, "command", "", "`command` that reproduces the run, for the report (default: the script with what was chosen to measure)")
	o.Output.Add(fl)
}

// Validate tells what is wrong with a command line that was parsed.
func (o *Options) Validate(fl *flag.FlagSet) error {
	switch {
	case fl.NArg() > 0:
		return fmt.Errorf("unknown argument %q", fl.Arg(0))
	case o.Output.From == "" && o.Binary == "":
		return errors.New("which slipway? Give -bin or SLIPWAY_BIN")
	case o.Rounds < 1:
		return errors.New("-rounds must be above 0")
	}
	return nil
}

// Given are the names of the flags that the command line has.
func Given(fl *flag.FlagSet) map[string]bool {
	given := map[string]bool{}
	fl.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
}

// Described is a command line without what is one machine's own business: a script with
// those of the flags, with a value or without, that were given.
func Described(fl *flag.FlagSet, script string, valued, switches []string) string {
	out := script
	fl.Visit(func(f *flag.Flag) {
		switch {
		case slices.Contains(valued, f.Name):
			out += " -" + f.Name + " " + f.Value.String()
		case slices.Contains(switches, f.Name):
			out += " -" + f.Name
		}
	})
	return out
}
