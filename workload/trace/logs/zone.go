package logs

import (
	"regexp"
	"strings"
)

// ibmName matches the names of the files of the IBM traces.
var ibmName = regexp.MustCompile(`(?:^|[/:])([A-Za-z0-9-]{1,64})-logstash-\d{4}\.\d{2}\.\d{2}-\d+\.json(?:\.(?:gz|zst|xz|bz2))?$`)

// ZoneOf returns the zone of a file of the IBM traces, by its name, and "" for other files. The
// names of production zones lose their prefix: prod-dal09 is dal09, and stage-dal09 is stage-dal09.
func ZoneOf(file string) string {
	m := ibmName.FindStringSubmatch(file)
	if m == nil {
		return ""
	}
	return strings.TrimPrefix(m[1], "prod-")
}
