// Command dashboards writes the Grafana boards of package dashboard into a directory.
// With -check it writes nothing, and fails if the files in the directory are not current.
//
//	go run ./scripts/dashboards [-check] [DIRECTORY]
//
// The default directory is deploy/grafana.
package main

import (
	"flag"
	"fmt"
	"os"

	"example.org/slipway/internal/dashboard"
)

func main() {
	check := flag.Bool("check", false, "compare, and write nothing")
	flag.Parse()
	dir, do := "deploy/grafana", dashboard.Write
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if *check {
		do = dashboard.Check
	}
	if err := do(dir); err != nil {
		fmt.Fprintf(os.Stderr, "dashboards: %v (go run ./scripts/dashboards writes them)\n", err)
		os.Exit(1)
	}
}
