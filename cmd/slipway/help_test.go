package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// each calls do for every command that users see.
func each(c *cobra.Command, do func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			do(sub)
			each(sub, do)
		}
	}
}

// TestExamples checks that the help of every command has an example and that the example
// can be parsed.
func TestExamples(t *testing.T) {
	each(rootCommand(), func(c *cobra.Command) {
		lines := strings.Split(strings.TrimSpace(c.Example), "\n")
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: has no description or no example", c.CommandPath())
			return
		}
		own := false
		for _, line := range lines {
			own = tryExample(t, c, strings.TrimSpace(line)) || own
		}
		if !own && !c.HasSubCommands() {
			t.Errorf("%s: no example is of the command itself", c.CommandPath())
		}
	})
}

// tryExample parses a line of an example and reports whether it runs the command c.
func tryExample(t *testing.T, c *cobra.Command, line string) bool {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " > ")
	line, _, _ = strings.Cut(line, " < ")
	line, _, _ = strings.Cut(line, " | ")
	words := strings.Fields(strings.NewReplacer("'", "", `"`, "").Replace(line))
	if len(words) == 0 || words[0] != "slipway" {
		return false // another program, or a continuation of the line before
	}
	found, rest, err := rootCommand().Find(words[1:])
	if err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
		return false
	}
	if err := found.ParseFlags(rest); err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
	} else if err := found.ValidateArgs(found.Flags().Args()); err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
	}
	return found.CommandPath() == c.CommandPath()
}

// TestOutputFlag checks the output flags of all commands: --output chooses a
// machine-readable form, and -o names a path to write.
func TestOutputFlag(t *testing.T) {
	each(rootCommand(), func(c *cobra.Command) {
		forms := 0
		c.Flags().VisitAll(func(f *pflag.Flag) {
			switch {
			case f.Shorthand == "o":
				checkPath(t, c, f)
			case f.Name == "output":
				checkForm(t, c, f)
			case f.Name == "json" || f.Name == "format" && f.Value.Type() == "form":
				forms++
			}
		})
		f := c.Flags().Lookup("output")
		if forms > 0 && f == nil {
			t.Errorf("%s: has no --output", c.CommandPath())
		}
		if f == nil {
			return
		}
		if asJSON := c.Flags().Lookup("json"); asJSON == nil || asJSON.NoOptDefVal == "" || f.Value.Set("text") != nil || asJSON.Value.Set("true") != nil || f.Value.String() != "json" {
			t.Errorf("%s: --json is not --output json", c.CommandPath())
		}
		for _, name := range []string{"json", "format"} {
			other := c.Flags().Lookup(name)
			if other == nil || name == "json" && c.Flags().Lookup("format") != nil || name == "format" && other.Value.Type() != "form" {
				continue
			}
			if got := other.Value.String(); got != "true" && got != "json" {
				t.Errorf("%s: --output json is not --%s", c.CommandPath(), name)
			}
		}
	})
}

// checkForm checks that --output is a form and leaves it set to json.
func checkForm(t *testing.T, c *cobra.Command, f *pflag.Flag) {
	t.Helper()
	if f.Shorthand != "" || f.Value.Set("json") != nil || f.Value.String() != "json" {
		t.Errorf("%s: --output json does not mean what it should", c.CommandPath())
	}
	for _, path := range []string{"report.html", "./json", "", "xml"} {
		if err := f.Value.Set(path); err == nil {
			t.Errorf("%s: --output takes %q for a form", c.CommandPath(), path)
		}
	}
	if f.Value.Set("text") != nil || f.Value.String() != "text" || f.Value.Set("json") != nil {
		t.Errorf("%s: --output text is refused", c.CommandPath())
	}
}

func checkPath(t *testing.T, c *cobra.Command, f *pflag.Flag) {
	t.Helper()
	if f.Name == "output" {
		t.Errorf("%s: -o is short for --output", c.CommandPath())
	}
	for _, form := range []string{"json", "text", "html"} {
		if err := f.Value.Set(form); err == nil {
			t.Errorf("%s: -o %s names a file", c.CommandPath(), form)
		}
	}
	for _, path := range []string{"report.json", "./json", "a/b"} {
		if err := f.Value.Set(path); err != nil || f.Value.String() != path {
			t.Errorf("%s: -o %s is %q, %v", c.CommandPath(), path, f.Value, err)
		}
	}
}

// TestManual checks that the manual has a page for each command and is the same each
// time.
func TestManual(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	var before string
	for _, format := range []string{"man", "man", "markdown"} {
		dir := t.TempDir()
		cmd := rootCommand()
		cmd.SetArgs([]string{"man", "--format", format, dir})
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		pages, err := filepath.Glob(filepath.Join(dir, "slipway*"))
		if err != nil || len(pages) < 60 {
			t.Fatalf("%s: %d pages, error %v", format, len(pages), err)
		}
		if format == "markdown" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "slipway-serve.1"))
		if err != nil || !strings.Contains(string(b), "Nov 2023") || before != "" && string(b) != before {
			t.Errorf("the page of serve differs or has no date: %v", err)
		}
		before = string(b)
	}
}

// TestCompletion checks that completion knows commands and the values of flags.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{"ser": "serve", "volume ": "build", "status --output ": "json", "mount --mode ": "volume-local"} {
		var out strings.Builder
		cmd := rootCommand()
		words := strings.Split(args, " ")
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, words...))
		cmd.SetOut(&out)
		if err := cmd.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q is completed by %q, error %v, want %s", args, out.String(), err, want)
		}
	}
}
