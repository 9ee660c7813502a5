package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build output, in place of Package
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// test is a test that has started, or a package (with an empty name).
type test struct {
	place
	name    string
	result  string // "pass", "fail", "skip", or "" while it runs
	flaky   bool   // it failed, and passed when run again
	seconds float64
	output  []string
}

func (t *test) String() string {
	if t.name == "" {
		return t.pkg
	}
	return t.pkg + "." + t.name
}

// place is a package as tested by one kind of run.
type place struct{ kind, pkg string }

type key struct {
	place
	name string
}

// summary collects the events of all packages.
type summary struct {
	out      io.Writer
	expected []*regexp.Regexp

	kinds []string // kinds of all runs
	kind  string   // kind of the current run, empty between runs
	seen  bool     // a failure has arrived since the run began
	tests map[key]*test
	order []*test             // in the order in which they started
	build map[string][]string // compiler output by import path
	grave map[place]bool      // packages with output that a second run must not excuse
}

func newSummary(out io.Writer, expected []*regexp.Regexp) *summary {
	return &summary{out: out, expected: expected, tests: map[key]*test{}, build: map[string][]string{}, grave: map[place]bool{}}
}

// read reads events until the input ends. It passes on lines that are not events, such as messages
// of the go command itself.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				fmt.Fprintf(s.out, "%s\n", strings.TrimRight(string(line), "\n"))
			} else {
				s.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (s *summary) add(e event) {
	switch e.Action {
	case "build-output", "build-fail":
		s.build[e.ImportPath] = append(s.build[e.ImportPath], e.Output)
		return
	case "begin":
		s.kind, s.seen = e.Output, false
		s.kinds = append(s.kinds, e.Output)
		return
	case "end":
		s.end(e.Output)
		return
	}
	t := s.test(e.Package, e.Test)
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		if isGrave(e.Output) {
			s.grave[t.place] = true
		}
	case "pass", "fail", "skip":
		t.result, t.seconds = e.Action, e.Elapsed
		s.seen = s.seen || e.Action == "fail"
		if e.FailedBuild != "" {
			t.output = append(t.output, s.build[e.FailedBuild]...)
		}
		s.progress(t)
		if t.result == "pass" {
			t.output = nil // only failures and skips are printed later
		}
	}
}

// test returns the entry of a test, or of a package if the name is empty.
func (s *summary) test(pkg, name string) *test {
	k := key{place{s.kind, pkg}, name}
	t := s.tests[k]
	if t == nil {
		t = &test{place: k.place, name: name}
		s.tests[k] = t
		s.order = append(s.order, t)
	}
	return t
}

// end records the exit status of the current run. If no test explains a status other than 0, the go
// command itself has failed.
func (s *summary) end(status string) {
	if status != "0" && !s.seen {
		t := s.test("run "+s.kind, "")
		t.result = "fail"
		t.output = append(t.output, "testsum: go test ended with status "+status+", but no test failed\n")
	}
	s.kind = ""
}

// progress prints a line for each finished package, and the output of each failed test, because a
// run that is cut off never reaches its end.
func (s *summary) progress(t *test) {
	switch {
	case t.name != "" && t.result == "fail":
		fmt.Fprintf(s.out, "FAIL  %s\n%s", t, strings.Join(t.output, ""))
	case t.name != "" || t.result == "skip": // "skip" of a package: it has no tests
	default:
		fmt.Fprintf(s.out, "%-4s  %s (%.1f s)\n", t.result, t, t.seconds)
	}
}

// finish prints failures, flaky tests, skips and totals, and reports whether all is well.
func (s *summary) finish() bool {
	s.settle()
	var passed, failed, skipped, flaky, unexpected int
	for _, t := range s.order {
		if t.flaky {
			fmt.Fprintf(s.out, "\n=== %s failed, and passed when it was run again; the failure:\n%s", t, strings.Join(t.output, ""))
		}
		switch {
		case t.result == "fail" && s.isFailure(t):
			failed++
			fmt.Fprintf(s.out, "\n=== FAIL: %s\n%s", t, strings.Join(t.output, ""))
		case t.name == "":
		case t.result == "pass":
			passed++
		case t.result == "skip" && s.ranElsewhere(t):
		case t.result == "skip":
			skipped++
			if !s.skip(t) {
				unexpected++
			}
		}
	}
	s.slowest()
	if unexpected > 0 {
		fmt.Fprintf(s.out, "\n%d skipped for a reason that is not expected: this counts as a failure\n", unexpected)
	}
	for _, t := range s.order {
		if t.flaky && !strings.Contains(t.name, "/") {
			flaky++
			fmt.Fprintf(s.out, "FLAKY: %s\n", t)
		}
	}
	fmt.Fprintf(s.out, "%d passed, %d failed, %d skipped", passed, failed, skipped)
	if flaky > 0 {
		fmt.Fprintf(s.out, ", %d flaky", flaky)
	}
	fmt.Fprintln(s.out)
	return failed == 0 && unexpected == 0 && passed > 0
}

// These constants bound the list of slow tests: its length, and the least duration of an
// entry.
const (
	slowTests   = 25
	slowSeconds = 10
)

// slowest prints which tests took longest. They are worth a look when all tests together
// take too long.
func (s *summary) slowest() {
	var slow []*test
	for _, t := range s.order {
		if t.name != "" && !strings.Contains(t.name, "/") && t.seconds >= slowSeconds {
			slow = append(slow, t)
		}
	}
	slices.SortStableFunc(slow, func(a, b *test) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, t := range slow[:min(len(slow), slowTests)] {
		fmt.Fprintf(s.out, "slow  %s (%.1f s)\n", t, t.seconds)
	}
}

// settle makes failures of the tests that never ended. A panic, a time limit or a killed go command
// leaves tests without a result.
func (s *summary) settle() {
	if s.kind != "" {
		s.end("unknown")
	}
	for _, t := range s.order {
		if t.result == "" {
			t.result = "fail"
			t.output = append(t.output, "testsum: it did not end\n")
			s.grave[t.place] = true
		}
	}
}

// isFailure reports whether a failed entry counts. Each test counts. A package counts
// only if none of its tests failed. If a package's tests did not end, both they and the
// package are printed, because the package's own output explains why.
func (s *summary) isFailure(t *test) bool {
	if t.name != "" {
		return true
	}
	for _, other := range s.order {
		if other.place == t.place && other.name != "" && other.result == "fail" {
			if len(t.output) > 0 {
				fmt.Fprintf(s.out, "\n=== output of %s\n%s", t, strings.Join(t.output, ""))
			}
			return false
		}
	}
	return true
}

// ranElsewhere reports whether another kind of run ran the test to its end. If so, this
// kind may skip it.
func (s *summary) ranElsewhere(t *test) bool {
	for _, kind := range s.kinds {
		if other := s.tests[key{place{kind, t.pkg}, t.name}]; other != nil && (other.result == "pass" || other.result == "fail") {
			return true
		}
	}
	return false
}

// skip prints a skipped test with its reason and reports whether it is expected.
func (s *summary) skip(t *test) bool {
	line := t.String() + ": " + skipReason(t.output)
	for _, re := range s.expected {
		if re.MatchString(line) {
			fmt.Fprintf(s.out, "skip  %s\n", line)
			return true
		}
	}
	fmt.Fprintf(s.out, "SKIP  %s (not expected)\n", line)
	return false
}

// location matches what testing puts in front of a message: "    file_test.go:12: ".
var location = regexp.MustCompile(`^\s+\S+\.go:\d+: `)

// skipReason returns the last message of a test's output.
func skipReason(output []string) string {
	for i := len(output) - 1; i >= 0; i-- {
		if loc := location.FindString(output[i]); loc != "" {
			return strings.TrimSpace(strings.Join(append([]string{output[i][len(loc):]}, continued(output[i+1:])...), " "))
		}
	}
	return "no reason given"
}

// continued returns the further lines of a message, which testing indents.
func continued(output []string) []string {
	var lines []string
	for _, o := range output {
		if !strings.HasPrefix(o, "        ") {
			break
		}
		lines = append(lines, strings.TrimSpace(o))
	}
	return lines
}

// readExpected returns the patterns in the file (none if its name is empty), and a pattern for each
// tool that may be absent.
func readExpected(file, tools string) ([]*regexp.Regexp, error) {
	var patterns []*regexp.Regexp
	for _, name := range strings.FieldsFunc(tools, func(r rune) bool { return r == ',' || r == ' ' }) {
		patterns = append(patterns, regexp.MustCompile(`: tool not installed: `+regexp.QuoteMeta(name)+`( |$)`))
	}
	if file == "" {
		return patterns, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, why, ok := strings.Cut(line, " ## ")
		if !ok || strings.TrimSpace(why) == "" {
			return nil, fmt.Errorf("%s:%d: no reason; want REGEXP ## REASON", file, n)
		}
		re, err := regexp.Compile(strings.TrimSpace(pattern))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		patterns = append(patterns, re)
	}
	return patterns, nil
}
