// Command testsum reads the output of one or more `go test -json` runs and
// summarises it: progress while it runs, the output of what failed, the reason
// of everything that was skipped, and as the last line
//
//	N passed, N failed, N skipped
//
// where each test and subtest counts once, and a package that failed without
// a failing test (it did not compile, panicked or ran into its time limit)
// counts as one failure.
//
// It exits with status 1 if anything failed, if nothing ran, if the input
// ended in the middle of a package, or if a test was skipped for a reason that
// the file given by -expected-skips does not list. Each line of the file is a
// regular expression, matched against "package.Test: reason", and behind " ## "
// why the skip is right. The environment variable SLIPWAY_ALLOW_SKIP names
// tools, separated by commas or spaces, whose absence is accepted on top.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	file := flag.String("expected-skips", "", "`file` of the skips that are not failures")
	flag.Parse()
	expected, err := readExpected(*file, os.Getenv("SLIPWAY_ALLOW_SKIP"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	s := newSummary(os.Stdout, expected)
	if err := s.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if !s.finish() {
		os.Exit(1)
	}
}
