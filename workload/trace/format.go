package trace

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// More formats, which an [Input] reads and nothing writes; docs/trace.md has a line of
// each.
const (
	// FormatDistribution is the log of Distribution, in JSON or logfmt.
	FormatDistribution Format = "distribution"
	// FormatNginx is Combined Log Format of nginx, with $request_time after it or
	// without, and what people write with log_format in JSON.
	FormatNginx Format = "nginx"
	// FormatHarbor is the access log of Harbor's proxy.
	FormatHarbor Format = "harbor"
	// FormatHarborCore is what Harbor's core logs of requests at level debug.
	FormatHarborCore Format = "harbor-core"
	// FormatZot is the log of zot.
	FormatZot Format = "zot"
	// FormatGitLab is the access log of GitLab's registry.
	FormatGitLab Format = "gitlab"
	// FormatQuay is what nginx writes in the log of Quay.
	FormatQuay Format = "quay"
	// FormatTraefik is the access log of Traefik, as common or as JSON.
	FormatTraefik Format = "traefik"
	// FormatEnvoy is the default access log of Envoy, of Istio, and theirs in JSON.
	FormatEnvoy Format = "envoy"
	// FormatALB is the access log of an AWS Application Load Balancer.
	FormatALB Format = "alb"
	// FormatHAProxy is the HTTP log of HAProxy.
	FormatHAProxy Format = "haproxy"
	// FormatCaddy is the access log of Caddy.
	FormatCaddy Format = "caddy"
	// FormatArtifactory is the request log of Artifactory.
	FormatArtifactory Format = "artifactory"
	// FormatNexus is the request log of Nexus.
	FormatNexus Format = "nexus"
	// FormatURIs is one URI per line and nothing else.
	FormatURIs Format = "uris"
)

// lineFormat is a format with a line for each request, and how such a line is read.
type lineFormat struct {
	name  Format
	parse func(*line, *Record) error
	// object says that lines are JSON objects.
	object bool
}

// lineFormats are in the order in which they are tried. If a file has lines of several
// formats, only those of the first format are read: a container may log each request
// twice, as an event of the registry and in its access log.
var lineFormats = []lineFormat{
	{name: FormatTrace, parse: parseTraceLine, object: true},
	{name: FormatHarbor, parse: parseHarbor},
	{name: FormatHarborCore, parse: parseHarborCore},
	{name: FormatQuay, parse: parseQuay},
	{name: FormatDistribution, parse: distributionKeys.parse, object: true},
	{name: FormatGitLab, parse: gitlabKeys.parse, object: true},
	{name: FormatZot, parse: zotKeys.parse, object: true},
	{name: FormatTraefik, parse: traefikKeys.parse, object: true},
	{name: FormatCaddy, parse: caddyKeys.parse, object: true},
	{name: FormatEnvoy, parse: envoyKeys.parse, object: true},
	{name: FormatNginx, parse: nginxKeys.parse, object: true},
	{name: FormatALB, parse: parseALB},
	{name: FormatEnvoy, parse: parseEnvoy},
	{name: FormatHAProxy, parse: parseHAProxy},
	{name: FormatArtifactory, parse: parseArtifactory},
	{name: FormatNexus, parse: parseNexus},
	{name: FormatTraefik, parse: parseTraefikCLF},
	{name: FormatNginx, parse: parseTimedNginx},
	{name: FormatCLF, parse: parseCLF},
}

// parseTimedNginx is parseNginx for lines that have a $request_time. A line without one may
// be of Apache, which writes the time of the arrival.
func parseTimedNginx(l *line, rec *Record) error {
	err := parseNginx(l, rec)
	if err == nil && rec.Duration < 0 {
		return notUnderstood("it has no $request_time")
	}
	return err
}

// readers are those of a format, by its name.
func readers(name Format) []lineFormat {
	if name == FormatNginx { // also without $request_time
		return []lineFormat{{name: FormatNginx, parse: nginxKeys.parse, object: true}, {name: FormatNginx, parse: parseNginx}}
	}
	var out []lineFormat
	for _, f := range lineFormats {
		if f.name == name {
			out = append(out, f)
		}
	}
	return out
}

// FormatNames are the names of the formats that an [Input] reads.
func FormatNames() []string {
	var names []string
	seen := map[Format]bool{}
	for _, f := range lineFormats {
		if !seen[f.name] {
			seen[f.name] = true
			names = append(names, string(f.name))
		}
	}
	return append(names, string(FormatURIs))
}

// ParseInputFormat checks the name of a format that an [Input] reads; "" and "auto"
// mean that it finds out by itself.
func ParseInputFormat(s string) (Format, error) {
	if s == "" || s == "auto" {
		return "", nil
	}
	for _, name := range FormatNames() {
		if s == name {
			return Format(s), nil
		}
	}
	return "", fmt.Errorf("unknown format %q: use auto, %s", s, strings.Join(FormatNames(), ", "))
}

// rank of a format among those of lines; below 0 is none.
func rankOf(l *line) int {
	var rec Record
	for i := range lineFormats {
		rec = Record{}
		if lineFormats[i].parse(l, &rec) == nil {
			return i
		}
	}
	return -1
}

// isURI reports whether a line is a URI of the protocol and nothing else.
func isURI(b []byte) bool {
	uri := bytes.TrimPrefix(b, []byte("/"))
	return (string(uri) == "v2" || bytes.HasPrefix(uri, []byte("v2/"))) && !bytes.ContainsAny(uri, " \t\"\\{}<>|")
}

// bareObjects reports whether a file of the ten-field form has its objects without
// anything that a collector put around them.
func bareObjects(head []byte, now time.Time) bool {
	if beginsTrace(head) {
		return true
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(head), []byte("\n"))
	var l line
	l.unwrap(first, now)
	return len(l.text) == 0 || l.text[0] == '{' && len(l.text) == len(bytes.TrimPrefix(bytes.TrimSpace(first), []byte("\xef\xbb\xbf")))
}

// beginsTrace reports whether a file begins with an array of objects, or with an object
// of the ten-field form, which may be on several lines.
func beginsTrace(head []byte) bool {
	head = bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")))
	if len(head) == 0 {
		return false
	}
	if head[0] == '[' {
		after := bytes.TrimLeft(head[1:], "[], \t\r\n")
		if len(after) == 0 || after[0] != '{' {
			return len(after) == 0
		}
		after = bytes.TrimLeft(after[1:], " \t\r\n")
		return len(after) == 0 || after[0] == '"' || after[0] == '}'
	}
	if head[0] != '{' {
		return false
	}
	n := objectEnd(head)
	var f fields
	return n > 0 && parseAny(head[:n], &f) == nil && len(f.method) > 0 && len(f.uri) > 0 && len(f.timestamp) > 0
}
