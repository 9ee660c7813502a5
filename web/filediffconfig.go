package web

import (
	"maps"
	"slices"
	"strings"
)

// runConfig is what a difference tells of images' configs.
type runConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User, WorkingDir, StopSignal string
		Env, Cmd, Entrypoint         []string
		Labels                       map[string]string
		ExposedPorts, Volumes        map[string]struct{}
	} `json:"config"`
}

// maxConfigChanges is how many differences of configs are listed.
const maxConfigChanges = 100

// changes lists what differs.
func (c *runConfig) changes(to *runConfig) []configChange {
	a, b := c.values(), to.values()
	keys := slices.Sorted(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var out []configChange
	for _, k := range keys {
		if a[k] != b[k] && len(out) < maxConfigChanges {
			out = append(out, configChange{showName(k), showName(a[k]), showName(b[k])})
		}
	}
	return out
}

// values are the settings of a config by name.
func (c *runConfig) values() map[string]string {
	r := &c.Config
	v := map[string]string{"Platform": c.OS + "/" + c.Architecture, "User": r.User, "Working directory": r.WorkingDir, "Stop signal": r.StopSignal,
		"Command": words(r.Cmd), "Entry point": words(r.Entrypoint), "Ports": strings.Join(slices.Sorted(maps.Keys(r.ExposedPorts)), " "), "Volumes": strings.Join(slices.Sorted(maps.Keys(r.Volumes)), " ")}
	for _, e := range r.Env {
		name, value, _ := strings.Cut(e, "=")
		v["Variable "+name] = value
	}
	for k, l := range r.Labels {
		v["Label "+k] = l
	}
	return v
}
