package images

import (
	"maps"
	"slices"
	"strings"

	"example.org/slipway/web/format"
)

// maxConfigChanges is how many differences of configs are listed.
const maxConfigChanges = 100

// changes lists the differences between two configs.
func (c *imageConfig) changes(to *imageConfig) []configChange {
	a, b := c.settings(), to.settings()
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
			out = append(out, configChange{format.Visible(k), format.Visible(a[k]), format.Visible(b[k])})
		}
	}
	return out
}

// settings returns the settings of a config by name. The creation time is not a setting.
func (c *imageConfig) settings() map[string]string {
	undated := *c
	undated.Created = nil
	v := map[string]string{}
	for _, f := range configFacts(&undated) {
		v[f.Name] = f.Value
	}
	for _, e := range c.Config.Env {
		name, value, _ := strings.Cut(e, "=")
		v["Variable "+name] = value
	}
	for k, l := range c.Config.Labels {
		v["Label "+k] = l
	}
	return v
}
