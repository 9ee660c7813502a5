package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const passing = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/sub"}
{"Action":"output","Package":"p","Test":"TestA/sub","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":0.1}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"p","Elapsed":0.2}
`

func TestSummary(t *testing.T) {
	skip := func(reason string) string {
		return `{"Action":"run","Package":"p","Test":"TestS"}
{"Action":"output","Package":"p","Test":"TestS","Output":"=== RUN   TestS\n"}
{"Action":"output","Package":"p","Test":"TestS","Output":"    a_test.go:12: ` + reason + `\n"}
{"Action":"output","Package":"p","Test":"TestS","Output":"--- SKIP: TestS (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestS","Elapsed":0}
`
	}
	for _, tt := range []struct {
		name, in string
		ok       bool
		last     string
		contains []string
	}{
		{"all pass", passing, true, "2 passed, 0 failed, 0 skipped", []string{"pass  p (0.2 s)"}},
		{
			"slow tests", passing + `{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q","Test":"TestB","Elapsed":12.5}
{"Action":"run","Package":"q","Test":"TestC"}
{"Action":"pass","Package":"q","Test":"TestC","Elapsed":31}
{"Action":"pass","Package":"q","Elapsed":44}
`, true, "4 passed, 0 failed, 0 skipped", []string{"slow  q.TestC (31.0 s)\nslow  q.TestB (12.5 s)\n4 passed"},
		},
		{"nothing ran", "", false, "0 passed, 0 failed, 0 skipped", nil},
		{
			"a failure shows its output", passing + `{"Action":"run","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:1: got 1\n"}
{"Action":"fail","Package":"q","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"q","Output":"FAIL\n"}
{"Action":"fail","Package":"q","Elapsed":0}
`, false, "2 passed, 1 failed, 0 skipped", []string{"FAIL  q.TestB\n", "=== FAIL: q.TestB\n    b_test.go:1: got 1\n"},
		},
		{
			"a package that does not compile", passing + `{"ImportPath":"q [q.test]","Action":"build-output","Output":"./q.go:1: undefined: x\n"}
{"ImportPath":"q [q.test]","Action":"build-fail"}
{"Action":"start","Package":"q"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q","Elapsed":0,"FailedBuild":"q [q.test]"}
`, false, "2 passed, 1 failed, 0 skipped", []string{"undefined: x"},
		},
		{
			"a test that never ended", passing + `{"Action":"start","Package":"q"}
{"Action":"run","Package":"q","Test":"TestHang"}
{"Action":"output","Package":"q","Output":"panic: test timed out after 1s\n"}
{"Action":"fail","Package":"q","Elapsed":1}
`, false, "2 passed, 1 failed, 0 skipped", []string{"=== FAIL: q.TestHang", "panic: test timed out"},
		},
		{
			"input cut off", passing + `{"Action":"start","Package":"q"}
`, false, "2 passed, 1 failed, 0 skipped", []string{"=== FAIL: q\ntestsum: it did not end"},
		},
		{
			"a package without tests", passing + `{"Action":"start","Package":"q"}
{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}
{"Action":"skip","Package":"q","Elapsed":0}
`, true, "2 passed, 0 failed, 0 skipped", nil,
		},
		{
			"an expected skip", passing + skip("no such disk"), true, "2 passed, 0 failed, 1 skipped",
			[]string{"skip  p.TestS: no such disk\n"},
		},
		{
			"an allowed tool", passing + skip("tool not installed: helm (run setup)"), true, "2 passed, 0 failed, 1 skipped",
			nil,
		},
		{
			"another tool", passing + skip("tool not installed: helmet (run setup)"), false, "2 passed, 0 failed, 1 skipped",
			[]string{"SKIP  p.TestS: tool not installed: helmet (run setup) (not expected)\n"},
		},
		{
			"a test that only one kind of run skips", run("race", "0", passing+skip("heavy")) + run("plain", "0", ended("p", "TestS", "pass", ""), ended("p", "", "pass", "")), true,
			"3 passed, 0 failed, 0 skipped", nil,
		},
		{
			"a test that only another kind of run skips", run("race", "0", passing, ended("p", "TestS", "pass", "")) + run("plain", "0", skip("heavy"), ended("p", "", "pass", "")), true,
			"3 passed, 0 failed, 0 skipped", nil,
		},
		{
			"a test that all kinds of run skip", run("race", "0", passing+skip("heavy")) + run("plain", "0", skip("heavy"), ended("p", "", "pass", "")), false,
			"2 passed, 0 failed, 2 skipped", []string{"SKIP  p.TestS: heavy (not expected)\n"},
		},
		{
			"a test that is skipped and runs in another package", run("race", "0", passing+skip("heavy")) + run("plain", "0", ended("q", "TestS", "pass", ""), ended("q", "", "pass", "")), false,
			"3 passed, 0 failed, 1 skipped", []string{"SKIP  p.TestS: heavy (not expected)\n"},
		},
		{"a message of the go command", passing + "go: warning\n", true, "2 passed, 0 failed, 0 skipped", []string{"go: warning\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expected, err := readExpected("", "crane, helm")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			s := newSummary(&out, append(expected, regexp.MustCompile(": no such disk")))
			if err := s.read(strings.NewReader(tt.in)); err != nil {
				t.Fatal(err)
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

func TestReadExpected(t *testing.T) {
	for _, tt := range []struct {
		text string
		ok   bool
	}{
		{"# comment\n\nx: y ## because\n", true},
		{"x: y\n", false},
		{"x: y ## \n", false},
		{"( ## because\n", false},
	} {
		file := filepath.Join(t.TempDir(), "skips")
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readExpected(file, ""); (err == nil) != tt.ok {
			t.Errorf("%q: error %v, want ok %v", tt.text, err, tt.ok)
		}
	}
	if _, err := readExpected("../../expected-skips.txt", ""); err != nil {
		t.Error(err)
	}
}

func FuzzSummary(f *testing.F) {
	f.Add([]byte(passing))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		s := newSummary(&out, nil)
		if err := s.read(bytes.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		s.finish()
	})
}
