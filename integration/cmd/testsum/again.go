package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// maxAgain is the maximum number of tests that are run again. If more failed, something is broken.
const maxAgain = 5

// isGrave reports whether a line of output belongs to a failure that may happen by chance
// but is always a fault. Such failures are data races, crashes, and panics, including the
// panic of a time limit.
func isGrave(line string) bool {
	return strings.Contains(line, "WARNING: DATA RACE") || strings.HasPrefix(line, "panic: ") ||
		strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "SIG") || strings.HasPrefix(line, "signal: ")
}

// group holds the tests of a package that are run again.
type group struct {
	place
	tests []string
}

// pattern returns the value of go test's flag -run.
func (g group) pattern() string { return "^(" + strings.Join(g.tests, "|") + ")$" }

// failed returns the failed tests, without their subtests, by package. It returns none if
// they must not be run again. This is so if more than maxAgain failed, or if a package
// failed for more reasons than its tests.
func (s *summary) failed() []group {
	s.settle()
	var groups []group
	n := 0
	for _, t := range s.order {
		switch {
		case t.result != "fail" || strings.Contains(t.name, "/"):
		case s.grave[t.place], s.failedByItself(t):
			return nil
		case t.name != "":
			i := slices.IndexFunc(groups, func(g group) bool { return g.place == t.place })
			if i < 0 {
				i = len(groups)
				groups = append(groups, group{place: t.place})
			}
			groups[i].tests = append(groups[i].tests, t.name)
			n++
		}
	}
	if n > maxAgain {
		return nil
	}
	return groups
}

// failedBelow reports whether a test of the package failed.
func (s *summary) failedBelow(p place) bool {
	return slices.ContainsFunc(s.order, func(t *test) bool { return t.place == p && t.name != "" && t.result == "fail" })
}

// failedByItself reports whether the entry is a package or a run that failed although none of its
// tests did.
func (s *summary) failedByItself(t *test) bool {
	return t.name == "" && t.result == "fail" && !s.failedBelow(t.place)
}

// runAgain runs the failed tests once more, each package alone. run starts such a run and passes
// its events to read. A test that passes now is flaky and not a failure.
func (s *summary) runAgain(run func(g group, read func(io.Reader) error) error) {
	for _, g := range s.failed() {
		fmt.Fprintf(s.out, "again  %s: %s\n", g.pkg, strings.Join(g.tests, ", "))
		second := newSummary(s.out, s.expected)
		if err := run(g, second.read); err != nil {
			fmt.Fprintf(s.out, "again  %s: %v\n", g.pkg, err)
		}
		second.settle()
		s.judge(g, second)
	}
}

// judge excuses the failures of a group that a second run does not repeat.
func (s *summary) judge(g group, second *summary) {
	whole := second.tests[key{place: g.place}]
	sound := whole != nil && !second.grave[g.place] && !slices.ContainsFunc(second.order, second.failedByItself)
	for _, name := range g.tests {
		t := second.tests[key{g.place, name}]
		if sound && t != nil && t.result == "pass" {
			s.excuse(g.place, name)
			continue
		}
		first := s.tests[key{g.place, name}]
		first.output = append(first.output, "=== again:\n")
		if t != nil {
			first.output = append(first.output, t.output...)
		}
		if whole != nil {
			first.output = append(first.output, whole.output...)
		}
	}
	if t := s.tests[key{place: g.place}]; t != nil && !s.failedBelow(g.place) {
		t.result = "pass"
	}
}

// excuse marks a failed test, and its subtests, as passed and flaky.
func (s *summary) excuse(p place, name string) {
	for _, t := range s.order {
		if t.place == p && t.result == "fail" && (t.name == name || strings.HasPrefix(t.name, name+"/")) {
			t.result, t.flaky = "pass", true
		}
	}
}

// flakyReport returns what the flaky tests printed when they failed, or "" if there are none.
func (s *summary) flakyReport() string {
	var b strings.Builder
	for _, t := range s.order {
		if t.flaky {
			fmt.Fprintf(&b, "=== %s\n%s\n", t, strings.Join(t.output, ""))
		}
	}
	return b.String()
}

// command returns a function that runs a group with a program. The program gets the kind of the
// run, the package and the pattern of the tests as further arguments.
func command(words []string) func(group, func(io.Reader) error) error {
	return func(g group, read func(io.Reader) error) error {
		cmd := exec.Command(words[0], append(slices.Clone(words[1:]), g.kind, g.pkg, g.pattern())...)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := read(out); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
			return err
		}
		return cmd.Wait()
	}
}
