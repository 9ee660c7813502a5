package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// statuses is the table of exit statuses. slipway --help says the same.
const statuses = `| exit status | meaning | of |
|---|---|---|
| 0 | everything was done | all commands |
| 1 | something failed, or is incomplete | all commands |
| 2 | the command line was wrong; nothing was done | all commands |
| 3 | wrong content came, or a gate was not met | ` + "`load`, `trace replay`, `trace compare`" + ` |
| 4 | problems remain, operations failed, or the run is not valid | ` + "`fsck`, `load`, `trace replay`, `trace compare`" + ` |
| others | the status of the container's command | ` + "`run`, `profile record`" + ` |

`

// commands returns the page of the command line, with the help of each command.
func commands(binary string) (string, error) {
	var toc, body strings.Builder
	if err := command(binary, nil, "a registry and its tools", &toc, &body); err != nil {
		return "", err
	}
	return made + "# Commands\n\nThis page has the output of `slipway COMMAND --help` for each command.\n\n" + statuses + toc.String() + body.String(), nil
}

// command adds a command and the commands below it. short is its text in the list.
func command(binary string, path []string, short string, toc, body *strings.Builder) error {
	var errs bytes.Buffer
	cmd := exec.Command(binary, append(append([]string{}, path...), "--help")...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("help of %q: %w: %s", path, err, errs.String())
	}
	help := string(out)
	name := strings.Join(append([]string{"slipway"}, path...), " ")
	anchor := strings.ReplaceAll(name, " ", "-")
	fmt.Fprintf(toc, "%s- [`%s`](#%s): %s\n", strings.Repeat("  ", len(path)), name, anchor, escape(short))
	fmt.Fprintf(body, "\n## %s\n\n```text\n%s```\n", name, trimLines(help))
	for _, sub := range subcommands(help) {
		if err := command(binary, append(append([]string{}, path...), sub.name), sub.short, toc, body); err != nil {
			return err
		}
	}
	return nil
}

// listed is a command as its parent's help lists it.
type listed struct{ name, short string }

// others are the headings of a help text that have no commands.
var others = []string{"Usage:", "Aliases:", "Examples:", "Flags:", "Global Flags:"}

// subcommands returns the commands that a help text lists under its headings, which follow
// the usage. It leaves out the commands that the command-line library adds, which explain
// themselves.
func subcommands(help string) []listed {
	var list []listed
	listing := false
	_, help, _ = strings.Cut(help, "\nUsage:")
	for line := range strings.SplitSeq(help, "\n") {
		switch {
		case !strings.HasPrefix(line, "  "):
			listing = strings.HasSuffix(line, ":") && !slices.Contains(others, line)
		case listing:
			if name, short, _ := strings.Cut(strings.TrimSpace(line), " "); name != "help" && name != "completion" {
				list = append(list, listed{name, strings.TrimSpace(short)})
			}
		}
	}
	return list
}

// trimLines removes spaces from the ends of lines.
func trimLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(s) + "\n") {
		b.WriteString(strings.TrimRight(line, " \t\n") + "\n")
	}
	return b.String()
}

// escape keeps a text from being read as markup.
func escape(s string) string {
	return strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`, "|", `\|`, "`", "\\`", "[", `\[`).Replace(s)
}
