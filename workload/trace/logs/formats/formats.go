// Package formats is the table of the log formats that Slipway reads, each with a parser of one
// line. A new format needs a constant and a row of the table here, a file with its parser, and an
// example line in docs/trace.md, which the tests read.
package formats

import (
	"fmt"
	"strings"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// These are further formats, which Slipway reads but does not write. docs/trace.md has a line of
// each.
const (
	// Distribution is the log of Distribution, in JSON or logfmt.
	Distribution trace.Format = "distribution"
	// Nginx is nginx's Combined Log Format, with or without $request_time after it, and what people
	// write with log_format in JSON.
	Nginx trace.Format = "nginx"
	// Harbor is the access log of Harbor's proxy.
	Harbor trace.Format = "harbor"
	// HarborCore is the log that Harbor's core writes of requests at level debug.
	HarborCore trace.Format = "harbor-core"
	// Zot is the log of zot.
	Zot trace.Format = "zot"
	// GitLab is the access log of GitLab's registry.
	GitLab trace.Format = "gitlab"
	// Quay is what nginx writes in Quay's log.
	Quay trace.Format = "quay"
	// Traefik is the access log of Traefik, as common or as JSON.
	Traefik trace.Format = "traefik"
	// Envoy is the default access log of Envoy and of Istio, or either in JSON.
	Envoy trace.Format = "envoy"
	// ALB is the access log of an AWS Application Load Balancer.
	ALB trace.Format = "alb"
	// HAProxy is the HTTP log of HAProxy.
	HAProxy trace.Format = "haproxy"
	// Caddy is the access log of Caddy.
	Caddy trace.Format = "caddy"
	// Artifactory is the request log of Artifactory.
	Artifactory trace.Format = "artifactory"
	// Nexus is the request log of Nexus.
	Nexus trace.Format = "nexus"
	// URIs is one URI per line and nothing else.
	URIs trace.Format = "uris"
)

// Parser is a format that has a line for each request, with the function that parses such a line.
type Parser struct {
	Name  trace.Format
	Parse func(*Line, *trace.Record) error
	// Object says that lines are JSON objects.
	Object bool
}

// table has the formats in the order in which they are tried. If a file has lines of
// several formats, only the lines of the first format are read: a container may log each
// request twice, as an event of the registry and in its access log.
var table = []Parser{
	{Name: trace.FormatTrace, Parse: parseTenFields, Object: true},
	{Name: Harbor, Parse: parseHarbor},
	{Name: HarborCore, Parse: parseHarborCore},
	{Name: Quay, Parse: parseQuay},
	{Name: Distribution, Parse: distributionKeys.parse, Object: true},
	{Name: GitLab, Parse: gitlabKeys.parse, Object: true},
	{Name: Zot, Parse: zotKeys.parse, Object: true},
	{Name: Traefik, Parse: traefikKeys.parse, Object: true},
	{Name: Caddy, Parse: caddyKeys.parse, Object: true},
	{Name: Envoy, Parse: envoyKeys.parse, Object: true},
	{Name: Nginx, Parse: nginxKeys.parse, Object: true},
	{Name: ALB, Parse: parseALB},
	{Name: Envoy, Parse: parseEnvoy},
	{Name: HAProxy, Parse: parseHAProxy},
	{Name: Artifactory, Parse: parseArtifactory},
	{Name: Nexus, Parse: parseNexus},
	{Name: Traefik, Parse: parseTraefikCLF},
	{Name: Nginx, Parse: parseTimedNginx},
	{Name: trace.FormatCLF, Parse: parseCLF},
}

// Parsers returns the parsers of a format, by its name.
func Parsers(name trace.Format) []Parser {
	if name == Nginx { // also without $request_time
		return []Parser{{Name: Nginx, Parse: nginxKeys.parse, Object: true}, {Name: Nginx, Parse: parseNginx}}
	}
	var out []Parser
	for _, f := range table {
		if f.Name == name {
			out = append(out, f)
		}
	}
	return out
}

// Names returns the names of the formats that are read.
func Names() []string {
	var names []string
	seen := map[trace.Format]bool{}
	for _, f := range table {
		if !seen[f.Name] {
			seen[f.Name] = true
			names = append(names, string(f.Name))
		}
	}
	return append(names, string(URIs))
}

// Parse checks the name of a format that is read. "" and "auto" mean that the format is detected
// from the lines.
func Parse(s string) (trace.Format, error) {
	if s == "" || s == "auto" {
		return "", nil
	}
	for _, name := range Names() {
		if s == name {
			return trace.Format(s), nil
		}
	}
	return "", fmt.Errorf("unknown format %q: use auto, %s", s, strings.Join(Names(), ", "))
}

// Rank returns the position in the table of the first format that a line can have, or a negative
// number if there is none.
func Rank(l *Line) int {
	var rec trace.Record
	for i := range table {
		rec = trace.Record{}
		if table[i].Parse(l, &rec) == nil {
			return i
		}
	}
	return -1
}

// At returns the format at a position of the table.
func At(rank int) trace.Format { return table[rank].Name }

// parseTenFields reads a line that is an object of the ten-field form.
func parseTenFields(l *Line, rec *trace.Record) error { return tenfield.ParseLine(l.Text, rec) }
