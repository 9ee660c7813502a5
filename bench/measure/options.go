package measure

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Options are what the suites' command lines have in common.
type Options struct {
	// Binary is the slipway binary to measure. Scenarios names the chosen scenarios.
	Binary, Scenarios string
	// Dir is where the run makes its directory.
	Dir    string
	Rounds int
	// Quick asks for a quick look. Check compares the results with the targets.
	Quick, Check bool
	// Commit and Command appear in the report.
	Commit, Command string
	Output          Output
}

// Common returns the options themselves, for the types that embed them.
func (o *Options) Common() *Options { return o }

// Defaults hold the defaults and texts of a suite's common flags.
type Defaults struct {
	Scenarios string // names of all scenarios
	Rounds    int    // the default number of rounds
	Dir       string // what the directory is for
	Quick     string // what -quick leaves out; empty if nothing
}

// Add defines the flags.
func (o *Options) Add(fl *flag.FlagSet, d Defaults) {
	fl.StringVar(&o.Binary, "bin", os.Getenv("SLIPWAY_BIN"), "slipway `binary` to measure (default $SLIPWAY_BIN)")
	fl.StringVar(&o.Scenarios, "scenario", "", "`names` of the scenarios to run, separated by commas (default all: "+d.Scenarios+")")
	fl.StringVar(&o.Dir, "dir", "/var/tmp", "`directory` for "+d.Dir)
	fl.IntVar(&o.Rounds, "rounds", d.Rounds, "`number` of rounds of what is measured in rounds")
	if d.Quick != "" {
		fl.BoolVar(&o.Quick, "quick", false, "a quick look: "+d.Quick)
	}
	fl.BoolVar(&o.Check, "check", false, "compare with the targets")
	fl.StringVar(&o.Commit, "commit", "unknown", "`commit` that is measured, for the report")
	fl.StringVar(&o.Command, "command", "", "`command` that reproduces the run, for the report (default: the script with what was chosen to measure)")
	o.Output.Add(fl)
}

// Validate returns an error if a parsed command line is wrong.
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

// Given returns the names of the flags that the command line sets.
func Given(fl *flag.FlagSet) map[string]bool {
	given := map[string]bool{}
	fl.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
}

// Described returns a command line without this machine's details. It consists of a
// script and the flags, among the listed ones, that were given, with their values or as
// switches.
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

// Numbers reads whole numbers, separated by commas, in a range.
func Numbers(list string, least, most int) (out []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("%q is no number from %d to %d", s, least, most)
		}
		out = append(out, n)
	}
	return out, nil
}
