package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// AddJSON adds the flag of a command that can print its report as JSON.
func AddJSON(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
}

// formValue is a flag that selects the format of a command's answer.
type formValue struct {
	form  *string
	forms []string
}

// AddForm adds the flag --name for the format of an answer. The default is text.
func AddForm(fl *pflag.FlagSet, form *string, name string, others ...string) {
	*form = "text"
	v := &formValue{form, append([]string{"text"}, others...)}
	fl.Var(v, name, "form of the answer: "+v.choice())
}

func (v *formValue) choice() string {
	last := len(v.forms) - 1
	return strings.Join(v.forms[:last], ", ") + " or " + v.forms[last]
}

// String implements pflag.Value.
func (v *formValue) String() string {
	if v.form == nil {
		return ""
	}
	return *v.form
}

// Set implements pflag.Value.
func (v *formValue) Set(s string) error {
	if !slices.Contains(v.forms, s) {
		return fmt.Errorf("it is %s; -o names a file, where the command writes one", v.choice())
	}
	*v.form = s
	return nil
}

// Type implements pflag.Value.
func (v *formValue) Type() string { return "form" }

// pathValue is the file or directory that a command writes.
type pathValue struct{ path *string }

// AddPath adds the flag -o, the file or directory that a command writes.
func AddPath(fl *pflag.FlagSet, path *string, name, usage string) {
	fl.VarP(&pathValue{path}, name, "o", usage)
}

// String implements pflag.Value.
func (v *pathValue) String() string {
	if v.path == nil {
		return ""
	}
	return *v.path
}

// Set implements pflag.Value. It refuses the name of a format, because a user who writes
// "-o json" wants the format and not a file of that name.
func (v *pathValue) Set(s string) error {
	if slices.Contains([]string{"text", "json", "yaml", "html", "csv", "svg", "junit"}, s) {
		return fmt.Errorf("-o names what is written; the form is --output %s, and a file of that name is ./%s", s, s)
	}
	*v.path = s
	return nil
}

// Type implements pflag.Value.
func (v *pathValue) Type() string { return "path" }

// oneOutputFlag adds the flags --output and --json to every command that can answer in a
// machine-readable format and lacks one of them.
func oneOutputFlag(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		oneOutputFlag(c)
		fl := c.Flags()
		if f := fl.Lookup("output"); f != nil {
			addJSONForm(fl, f.Value)
			continue
		}
		if f := fl.Lookup("format"); f != nil && f.Value.Type() == "form" { // other types are formats of input
			fl.Var(f.Value, "output", "the same as --format")
			addJSONForm(fl, f.Value)
		} else if f := fl.Lookup("json"); f != nil {
			fl.Var(&jsonValue{f.Value}, "output", "form of the answer: text or json, which is --json")
		}
	}
}

// addJSONForm adds the flag --json, which sets the form of an answer to json, if there is none.
func addJSONForm(fl *pflag.FlagSet, form pflag.Value) {
	if fl.Lookup("json") == nil {
		fl.VarPF(&jsonForm{form}, "json", "", "the same as --output json").NoOptDefVal = "true"
	}
}

// jsonForm is a boolean flag that sets a form to json.
type jsonForm struct{ form pflag.Value }

// String implements pflag.Value.
func (v *jsonForm) String() string {
	return strconv.FormatBool(v.form != nil && v.form.String() == "json")
}

// Set implements pflag.Value.
func (v *jsonForm) Set(s string) error {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("it is true or false")
	}
	if on {
		return v.form.Set("json")
	}
	return v.form.Set("text")
}

// Type implements pflag.Value.
func (v *jsonForm) Type() string { return "bool" }

// jsonValue is a flag text|json that sets the boolean flag --json.
type jsonValue struct{ json pflag.Value }

// String implements pflag.Value.
func (v *jsonValue) String() string {
	if v.json != nil && v.json.String() == "true" {
		return "json"
	}
	return "text"
}

// Set implements pflag.Value.
func (v *jsonValue) Set(s string) error {
	switch s {
	case "text":
		return v.json.Set("false")
	case "json":
		return v.json.Set("true")
	}
	return fmt.Errorf("it is text or json")
}

// Type implements pflag.Value.
func (v *jsonValue) Type() string { return "form" }

// PrintReport prints a report as JSON or by the given function.
func PrintReport(w io.Writer, asJSON bool, rep any, text func()) error {
	if !asJSON {
		text()
		return nil
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rep)
}

// Printable replaces control characters, so that they do not reach the terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\ufffd' {
			return '?'
		}
		return r
	}, s)
}
