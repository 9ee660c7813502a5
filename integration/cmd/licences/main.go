// Command licences reads the licences of everything that is linked into slipway. It fails if a
// module has no licence, an unrecognised one, or one that is not on the list of licences that may
// be linked. It writes all names, versions and texts into the file that a release carries.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
)

// builds are the builds to check: the binaries of a release, and the binary with Ceph's
// driver. Users build the binary with the driver themselves, so it is checked but not
// listed.
var builds = []build{
	{goarch: "amd64", listed: true},
	{goarch: "arm64", listed: true},
	{goarch: "amd64", tags: "ceph pacific", cgo: true},
}

func main() {
	root := flag.String("root", "..", "the repository")
	out := flag.String("out", "", "file to write the list to; none: check only")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	modules, err := linked(root, builds)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := m.read(); err != nil {
			return err
		}
	}
	if err := check(modules); err != nil {
		return err
	}
	counts := tally(modules)
	fmt.Printf("%d modules: %s\n", len(modules), counts)
	if out == "" {
		return nil
	}
	var b bytes.Buffer
	write(&b, modules)
	return os.WriteFile(out, b.Bytes(), 0o644)
}
