// Command site makes an HTML site from the documentation. Every link must lead to something: a
// page, a heading on it, or a file of the repository.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", "..", "the repository")
	out := flag.String("out", "../dist/site", "directory for the site, which is made again")
	flag.Parse()
	n, err := build(*root, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d pages in %s\n", n, *out)
}
