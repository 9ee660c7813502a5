package command

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is set by the linker (make build). commit is set, too, if the build has no
// information about the repository (make release).
var Version, commit = "dev", ""

// Build says from what and for what the program was built.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// About returns from what and for what this program was built.
func About() Build {
	b := Build{Version: Version, Commit: commit, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok && b.Commit == "" {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	b.Commit = cmp.Or(b.Commit, "unknown")
	return b
}

// LongVersion returns the version, and from what and for what it was built.
func LongVersion() string {
	b := About()
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", b.Version, b.Commit, b.Go, b.OS, b.Arch)
}
