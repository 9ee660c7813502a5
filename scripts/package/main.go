// Command package makes the parts of a release of Slipway from binaries that are already
// built: tarballs, Debian packages, the container image, bills of material, the Helm
// chart and the list of checksums. scripts/release.sh builds the binaries and calls it.
//
//	go run ./scripts/package [FLAG...] KIND...
//
// Kinds are tarball, deb, rpm, sbom, image, chart and sums. sums lists the files in the output
// directory and therefore comes last. The output depends only on the inputs: times are
// given by -epoch, owners are fixed, entries are sorted. Run the command in the root of
// the source tree.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// release holds what every kind of package is made from.
type release struct {
	version  string // as the binary prints it, without a leading v
	revision string // commit, empty if unknown
	epoch    time.Time
	arches   []string // of Go
	binaries string   // directory of slipway-ARCH
	extras   string   // directory of man/, completions/ and licences.txt
	chart    string   // the archive that helm package made
	out      string
	quick    bool // compress little, for tests
}

func main() {
	var r release
	var epoch int64
	var arches string
	flag.StringVar(&r.version, "version", "", "version of the release")
	flag.StringVar(&r.revision, "revision", "", "commit it is built from")
	flag.Int64Var(&epoch, "epoch", 0, "time of everything in it, in seconds since 1970")
	flag.StringVar(&arches, "arch", "amd64,arm64", "architectures, as Go names them")
	flag.StringVar(&r.binaries, "binaries", "", "directory of slipway-ARCH")
	flag.StringVar(&r.extras, "extras", "", "directory of man/, completions/ and licences.txt")
	flag.StringVar(&r.chart, "chart", "", "archive made by helm package")
	flag.StringVar(&r.out, "out", "dist", "directory to write to")
	flag.BoolVar(&r.quick, "quick", false, "compress little: for tests")
	flag.Parse()
	r.epoch, r.arches = time.Unix(epoch, 0).UTC(), strings.Split(arches, ",")
	r.version = strings.TrimPrefix(r.version, "v")
	if err := r.make(flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "package: %v\n", err)
		os.Exit(1)
	}
}

// versions matches the output of git describe and the names of tags. They become parts of
// file names and control files.
var versions = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+~-]*$`)

func (r *release) make(kinds []string) error {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("%q is no version: give one with -version, such as 0.1.0", r.version)
	}
	if len(kinds) == 0 {
		return errors.New("nothing to make: name tarball, deb, rpm, sbom, image, chart or sums")
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	for _, kind := range kinds {
		var err error
		switch kind {
		case "tarball":
			err = r.each(r.tarball)
		case "deb":
			err = r.each(r.deb)
		case "rpm":
			err = r.each(r.rpm)
		case "sbom":
			err = r.each(r.sbom)
		case "image":
			err = r.image()
		case "chart":
			err = r.repackChart()
		case "sums":
			err = r.sums()
		default:
			err = errors.New("there is no such kind of package")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

// each calls do for each architecture.
func (r *release) each(do func(arch string) error) error {
	for _, arch := range r.arches {
		if err := do(arch); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	return nil
}

func (r *release) binary(arch string) string { return filepath.Join(r.binaries, "slipway-"+arch) }

// write writes a file of the release. It writes under another name and renames the file,
// so that an interrupt leaves no incomplete file.
func (r *release) write(name string, data []byte) error {
	path := filepath.Join(r.out, name)
	if err := os.WriteFile(path+".part", data, 0o644); err != nil {
		return err
	}
	fmt.Printf("%s  %.1f MiB\n", path, float64(len(data))/(1<<20))
	return os.Rename(path+".part", path)
}
