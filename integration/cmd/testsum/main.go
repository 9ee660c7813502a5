// Command testsum reads the output of one or more `go test -json` runs and summarises it. It prints
// progress while it reads, the output of what failed, and the reason of every skip. The last line
// is
//
//	N passed, N failed, N skipped
//
// Each test and subtest counts once. A package that failed without a failing test (it did not
// compile, panicked or ran into its time limit) counts as one failure.
//
// It exits with status 1 if anything failed, if nothing ran, if the input ended in the middle of a
// package, or if a test was skipped for a reason that is not in the file given by -expected-skips.
// Each line of that file is a regular expression that is matched against "package.Test: reason",
// followed by " ## " and why the skip is right. The environment variable SLIPWAY_ALLOW_SKIP names
// further tools whose absence is accepted, separated by commas or spaces.
//
// A line before and a line after each run separate the runs. The second line has the exit
// status of go test. A package that several kinds of run test counts in each of them, and
// a test that one kind skips and another runs is not skipped:
//
//	{"Action":"begin","Output":"KIND"}
//	{"Action":"end","Output":"0"}
//
// The arguments are a command that runs tests again. If at most five tests failed, testsum calls
// the command once for each of their packages, with the kind, the package and the pattern of the
// tests as further arguments. The command prints events. A test that passes then does not fail the
// run. It is listed as FLAKY with the output of its failure, which also goes to the file given by
// -flaky, and the last line ends with ", N flaky". Nothing is run again if a package did not build,
// did not end, panicked, or printed the report of a data race.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	file := flag.String("expected-skips", "", "`file` of the skips that are not failures")
	flaky := flag.String("flaky", "", "`file` for the output of flaky tests, written only if there are any")
	flag.Parse()
	ok, err := summarise(*file, *flaky, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// summarise reads the standard input and reports whether all is well.
func summarise(expectedFile, flakyFile string, again []string) (bool, error) {
	expected, err := readExpected(expectedFile, os.Getenv("SLIPWAY_ALLOW_SKIP"))
	if err != nil {
		return false, err
	}
	s := newSummary(os.Stdout, expected)
	if err := s.read(os.Stdin); err != nil {
		return false, err
	}
	if len(again) > 0 {
		s.runAgain(command(again))
	}
	if report := s.flakyReport(); report != "" && flakyFile != "" {
		if err := os.WriteFile(flakyFile, []byte(report), 0o600); err != nil {
			return false, err
		}
	}
	return s.finish(), nil
}
