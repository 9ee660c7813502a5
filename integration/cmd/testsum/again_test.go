package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// run returns the events of a run of one kind.
func run(kind, status string, events ...string) string {
	return fmt.Sprintf("{%q:%q,%q:%q}\n%s{%q:%q,%q:%q}\n", "Action", "begin", "Output", kind, strings.Join(events, ""), "Action", "end", "Output", status)
}

// ended returns the events of a test that prints something and ends. Without a name they are those
// of a package.
func ended(pkg, name, result, output string) string {
	var b strings.Builder
	if output != "" {
		fmt.Fprintf(&b, `{"Action":"output","Package":%q,"Test":%q,"Output":%q}`+"\n", pkg, name, output)
	}
	fmt.Fprintf(&b, `{"Action":%q,"Package":%q,"Test":%q}`+"\n", result, pkg, name)
	return b.String()
}

const raceReport = "WARNING: DATA RACE\n"

// TestRunAgain makes tests fail, and chooses their results when they are run again.
func TestRunAgain(t *testing.T) {
	failed := func(names ...string) string {
		var events []string
		for _, name := range names {
			events = append(events, ended("q", name, "fail", "    q_test.go:1: first "+name+"\n"))
		}
		return run("race", "1", append(events, ended("q", "", "fail", "FAIL\n"))...)
	}
	passed := func(names ...string) string {
		var events []string
		for _, name := range names {
			events = append(events, ended("q", name, "pass", ""))
		}
		return run("race", "0", append(events, ended("q", "", "pass", ""))...)
	}
	for _, tt := range []struct {
		name, first string
		second      string // events of any package
		err         error  // error of the second run
		asked       string // kind, package and pattern of the second run
		ok          bool
		last        string
		contains    []string
	}{
		{
			name: "a test passes", first: failed("TestB"), second: passed("TestB"),
			asked: "race q ^(TestB)$", ok: true, last: "3 passed, 0 failed, 0 skipped, 1 flaky",
			contains: []string{"failure:\n    q_test.go:1: first TestB\n", "\nFLAKY: q.TestB\n"},
		},
		{
			name: "its subtests count, and are not named", first: failed("TestB/x", "TestB"), second: passed("TestB/x", "TestB"),
			asked: "race q ^(TestB)$", ok: true, last: "4 passed, 0 failed, 0 skipped, 1 flaky",
		},
		{
			name: "a test fails twice", first: failed("TestB"),
			second: run("race", "1", ended("q", "TestB", "fail", "second\n"), ended("q", "", "fail", "")),
			asked:  "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
			contains: []string{"first TestB\n=== again:\nsecond\n"},
		},
		{
			name: "one of two passes", first: failed("TestB", "TestC"),
			second: run("race", "1", ended("q", "TestB", "pass", ""), ended("q", "TestC", "fail", ""), ended("q", "", "fail", "")),
			asked:  "race q ^(TestB|TestC)$", last: "3 passed, 1 failed, 0 skipped, 1 flaky",
		},
		{
			name: "a test is skipped", first: failed("TestB"),
			second: run("race", "0", ended("q", "TestB", "skip", ""), ended("q", "", "pass", "")),
			asked:  "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "nothing is run", first: failed("TestB"), second: run("race", "0", ended("q", "", "pass", "")),
			asked: "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "the package fails behind its tests", first: failed("TestB"),
			second: run("race", "1", ended("q", "TestB", "pass", ""), ended("q", "", "fail", "leak\n")),
			asked:  "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "another kind of run passes", first: failed("TestB"), second: strings.ReplaceAll(passed("TestB"), "race", "ceph"),
			asked: "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "the second run cannot start", first: failed("TestB"), err: errors.New("no program"),
			asked: "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped", contains: []string{"no program"},
		},
		{
			name: "the second run is cut off", first: failed("TestB"), second: strings.TrimSuffix(passed("TestB"), "{\"Action\":\"end\",\"Output\":\"0\"}\n"),
			asked: "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "a race is reported again", first: failed("TestB"),
			second: run("race", "1", ended("q", "TestB", "pass", raceReport), ended("q", "", "fail", "")),
			asked:  "race q ^(TestB)$", last: "2 passed, 1 failed, 0 skipped",
		},
		{name: "five tests", first: failed("A", "B", "C", "D", "E"), second: passed("A", "B", "C", "D", "E"), asked: "race q ^(A|B|C|D|E)$", ok: true, last: "7 passed, 0 failed, 0 skipped, 5 flaky"},
		{name: "six tests", first: failed("A", "B", "C", "D", "E", "F"), last: "2 passed, 6 failed, 0 skipped"},
		{
			name: "a data race", first: run("race", "1", ended("q", "TestB", "fail", "==================\n"+raceReport), ended("q", "", "fail", "")),
			last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name:  "a data race in a test that passes",
			first: run("race", "1", ended("q", "TestA", "pass", raceReport), ended("q", "TestB", "fail", ""), ended("q", "", "fail", "")),
			last:  "3 passed, 1 failed, 0 skipped",
		},
		{
			name: "a panic", first: run("race", "1", ended("q", "TestB", "fail", "panic: no\n"), ended("q", "", "fail", "")),
			last: "2 passed, 1 failed, 0 skipped",
		},
		{
			name: "the time limit of a package",
			first: run("race", "1", `{"Action":"run","Package":"q","Test":"TestB"}`+"\n", ended("q", "TestC", "fail", ""),
				ended("q", "", "fail", "panic: test timed out after 1s\n")),
			last: "2 passed, 2 failed, 0 skipped",
		},
		{
			name: "a package that does not build", first: failed("TestB") + run("ceph", "1", ended("r", "", "fail", "FAIL\tr [build failed]\n")),
			last: "2 passed, 2 failed, 0 skipped",
		},
		{
			name: "the go command fails", first: failed("TestB") + run("race", "1"),
			last: "2 passed, 2 failed, 0 skipped", contains: []string{"no test failed"},
		},
		{
			name: "the input is cut off", first: failed("TestB") + `{"Action":"begin","Output":"ceph"}` + "\n",
			last: "2 passed, 2 failed, 0 skipped",
		},
		{
			name: "a test that passes in another kind of run", first: failed("TestB") + run("ceph", "0", ended("q", "TestB", "pass", ""), ended("q", "", "pass", "")),
			second: failed("TestB"), asked: "race q ^(TestB)$", last: "3 passed, 1 failed, 0 skipped",
		},
		{name: "nothing failed", last: "2 passed, 0 failed, 0 skipped", ok: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			s := newSummary(&out, nil)
			if err := s.read(strings.NewReader(passing + tt.first)); err != nil {
				t.Fatal(err)
			}
			var asked []string
			s.runAgain(func(g group, read func(io.Reader) error) error {
				asked = append(asked, g.kind+" "+g.pkg+" "+g.pattern())
				return errors.Join(read(strings.NewReader(tt.second)), tt.err)
			})
			if got := strings.Join(asked, ", "); got != tt.asked {
				t.Errorf("%q is run again, want %q", got, tt.asked)
			}
			ok := s.finish()
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; ok != tt.ok || last != tt.last {
				t.Errorf("got %v, %q, want %v, %q; output:\n%s", ok, last, tt.ok, tt.last, &out)
			}
			for _, want := range tt.contains {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, &out)
				}
			}
		})
	}
}

// TestCommand runs a program again as scripts/test.sh does, and checks its exit status and its
// arguments.
func TestCommand(t *testing.T) {
	g := group{place: place{"race", "q"}, tests: []string{"TestB", "TestC"}}
	var got []byte
	err := command([]string{"sh", "-c", `printf '%s|' "$@"; exit 3`, "sh", "again"})(g, func(r io.Reader) (err error) {
		got, err = io.ReadAll(r)
		return err
	})
	if want := "again|race|q|^(TestB|TestC)$|"; string(got) != want || err == nil || err.Error() != "exit status 3" {
		t.Errorf("printed %q, error %v; want %q and status 3", got, err, want)
	}
}

// TestReport checks that the report holds what flaky tests printed, and nothing of other tests.
func TestReport(t *testing.T) {
	s := newSummary(io.Discard, nil)
	if err := s.read(strings.NewReader(run("race", "1", ended("q", "TestA", "fail", "a\n"), ended("q", "TestB", "fail", "b\n")))); err != nil {
		t.Fatal(err)
	}
	if got := s.flakyReport(); got != "" {
		t.Errorf("a report before anything was run again: %q", got)
	}
	s.excuse(place{"race", "q"}, "TestB")
	if got, want := s.flakyReport(), "=== q.TestB\nb\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
