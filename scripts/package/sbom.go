package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom writes the bill of materials of a binary in CycloneDX format: the modules that the
// linker recorded in the binary, and the standard library. It has the time of the release
// and no serial number, so that the same binary has the same bill.
func (r *release) sbom(arch string) error {
	info, err := buildinfo.ReadFile(r.binary(arch))
	if err != nil {
		return err
	}
	bom := cdx.NewBOM()
	main := module(&info.Main, cdx.ComponentTypeApplication)
	main.Version = r.version
	main.PackageURL = purl(info.Main.Path, r.version)
	main.BOMRef = main.PackageURL
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.Properties = &[]cdx.Property{{Name: "go:goos", Value: "linux"}, {Name: "go:goarch", Value: arch}}
	bom.Metadata = &cdx.Metadata{Timestamp: r.epoch.Format("2006-01-02T15:04:05Z07:00"), Component: &main}

	std := module(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}, cdx.ComponentTypeLibrary)
	components, refs := []cdx.Component{std}, []string{std.BOMRef}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := module(m, cdx.ComponentTypeLibrary)
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	var buf bytes.Buffer
	if err := cdx.NewBOMEncoder(&buf, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return r.write(fmt.Sprintf("slipway-%s-linux-%s.cdx.json", r.version, arch), buf.Bytes())
}

func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

func module(m *debug.Module, kind cdx.ComponentType) cdx.Component {
	c := cdx.Component{Type: kind, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version), Scope: cdx.ScopeRequired}
	c.BOMRef = c.PackageURL
	if m.Sum != "" { // as in go.sum: a hash of a list of files, not of one file
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}
