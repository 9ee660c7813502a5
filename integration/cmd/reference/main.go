// Command reference prints the pages of docs/reference that are generated from the code:
//
//	reference cli BINARY     every command of the program, from its help
//	reference metrics ROOT   every metric, from the sources
//	reference events         what webhooks send, by sending it
//	reference values FILE    the schema of the chart's values, with those of both configurations
//
// scripts/gen-docs.sh writes its output to the pages, and to the chart.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var page string
	var err error
	switch {
	case len(args) == 2 && args[0] == "cli":
		page, err = commands(args[1])
	case len(args) == 2 && args[0] == "metrics":
		page, err = metricsPage(args[1])
	case len(args) == 1 && args[0] == "events":
		page, err = events()
	case len(args) == 2 && args[0] == "values":
		page, err = valuesSchema(args[1])
	default:
		err = fmt.Errorf("usage: reference cli BINARY | metrics ROOT | events | values FILE")
	}
	if err != nil {
		return err
	}
	_, err = os.Stdout.WriteString(page)
	return err
}

// made is the first line of each page.
const made = "<!-- Made by scripts/gen-docs.sh. Change the code, or integration/cmd/reference. -->\n"
