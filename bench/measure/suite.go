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

// Suite is a part of the benchmark program with its own command line.
type Suite struct {
	Name, About string
	// Run reads the suite's command line and measures. It reports whether all is well.
	Run func(ctx context.Context, args []string) (good bool, err error)
}

// usageError is the error of a wrong command line.
type usageError struct{ error }

// NewSuite returns a suite from two functions. One reads the suite's command line, and
// the other runs what the command line requests.
func NewSuite[O any](name, about string, parse func(args []string) (O, error), run func(o O, ctx context.Context) (good bool, err error)) Suite {
	return Suite{Name: name, About: about, Run: func(ctx context.Context, args []string) (good bool, err error) {
		o, err := parse(args)
		if errors.Is(err, flag.ErrHelp) {
			return true, nil
		}
		if err != nil {
			return false, usageError{err}
		}
		return run(o, ctx)
	}}
}

// Measuring returns the function that runs a suite whose results have parts. The function
// measures or reads earlier results, and reports on them between the marks of a document.
// It reports whether all targets are met, or were not to be checked.
func Measuring[O interface{ Common() *Options }, T any, R Results[T]](m Marks,
	measure func(o O, ctx context.Context) (R, error)) func(O, context.Context) (bool, error) {
	return func(o O, ctx context.Context) (good bool, err error) {
		met, err := Carry(&o.Common().Output, m, func() (R, error) { return measure(o, ctx) })
		return met || !o.Common().Check, err
	}
}

// Main runs the suite that the command line names, until it is done or interrupted, and ends the
// process. The exit status is 2 if the command line is wrong, and 1 on an error or if not all is
// well.
func Main(suites ...Suite) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, suites, os.Args[1:])
	stop()
	os.Exit(status)
}

// run returns the exit status.
func run(ctx context.Context, suites []Suite, args []string) int {
	i := -1
	if len(args) > 0 {
		i = slices.IndexFunc(suites, func(s Suite) bool { return s.Name == args[0] })
	}
	if i < 0 {
		fmt.Fprint(os.Stderr, "usage: bench SUITE [FLAG...]; bench SUITE -h lists the flags. The suites:\n")
		for _, s := range suites {
			fmt.Fprintf(os.Stderr, "  %-9s %s\n", s.Name, s.About)
		}
		return 2
	}
	good, err := suites[i].Run(ctx, args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench %s: %v\n", args[0], err)
	}
	switch {
	case errors.As(err, new(usageError)):
		return 2
	case err != nil || !good:
		return 1
	}
	return 0
}
