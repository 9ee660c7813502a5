package command

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// The linker sets Version (make build). It also sets commit if the build has no
// information about the repository (make release).
var Version, commit = "dev", ""

// Build describes a build of the program: its sources, the Go version and the platform.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// About describes the build of this program.
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

// LongVersion returns the version with the rest of what About returns.
func LongVersion() string {
	b := About()
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", b.Version, b.Commit, b.Go, b.OS, b.Arch)
}
