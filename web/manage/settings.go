package manage

import (
	"net/url"
	"strings"
	"time"

	"example.org/slipway/registry/auth"
)

// Settings is how a server is configured, without secrets.
type Settings struct {
	// Values are in the order of the configuration.
	Values []Setting
	// Rules are the access rules, and Methods are the methods by which clients
	// authenticate.
	Rules   []auth.Rule
	Methods []string
	// Build holds facts about the build. Listeners are the addresses on which the server
	// listens.
	Build, Listeners []Fact
	Started          time.Time
}

// Setting is a value of the configuration. From says where it was set; it is empty for a
// default.
type Setting struct{ Key, Value, Doc, From string }

// SettingsPage is what the page of the configuration shows.
type SettingsPage struct {
	Settings
	Groups []SettingGroup
	// Changed are the values that were set, unless the user looks for others.
	Changed []Setting
	Search  string
	// Set leaves out values that are the default.
	Set    bool
	Uptime time.Duration
	Open   bool
}

// SettingGroup is a section of the configuration.
type SettingGroup struct {
	Name   string
	Values []Setting
}

// FindSettings returns the page of the settings for which a form looks.
func FindSettings(all Settings, form url.Values, now time.Time) *SettingsPage {
	d := &SettingsPage{Settings: all, Search: strings.TrimSpace(form.Get("q")), Set: form.Get("set") != "", Uptime: now.Sub(all.Started)}
	find := strings.ToLower(d.Search)
	for _, v := range d.Values {
		if d.Set && v.From == "" || !strings.Contains(strings.ToLower(v.Key+" "+v.Value+" "+v.Doc+" "+v.From), find) {
			continue
		}
		if v.From != "" && !d.Set && find == "" {
			d.Changed = append(d.Changed, v)
		}
		name, _, _ := strings.Cut(v.Key, ".")
		if n := len(d.Groups); n == 0 || d.Groups[n-1].Name != name {
			d.Groups = append(d.Groups, SettingGroup{Name: name})
		}
		g := &d.Groups[len(d.Groups)-1]
		g.Values = append(g.Values, v)
	}
	return d
}
