package web

import (
	"net/http"
	"strings"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/web/manage"
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
	Build, Listeners []manage.Fact
	Started          time.Time
}

// Setting is a value of the configuration. From says where it was set; it is empty for a
// default.
type Setting struct{ Key, Value, Doc, From string }

// settingsData is what the page shows.
type settingsData struct {
	Settings
	Groups []settingGroup
	// Changed are the values that were set, unless the user looks for others.
	Changed []Setting
	Search  string
	// Set leaves out values that are the default.
	Set    bool
	Uptime time.Duration
	Open   bool
}

// settingGroup is a section of the configuration.
type settingGroup struct {
	Name   string
	Values []Setting
}

// settings shows the configuration.
func (q *request) settings() error {
	d := &settingsData{Search: strings.TrimSpace(q.r.FormValue("q")), Set: q.r.FormValue("set") != "", Open: q.h.access == nil}
	if f := q.h.opts.System.Settings; f != nil {
		d.Settings = f()
	}
	d.Uptime = q.h.opts.Clock().Sub(d.Started)
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
			d.Groups = append(d.Groups, settingGroup{Name: name})
		}
		g := &d.Groups[len(d.Groups)-1]
		g.Values = append(g.Values, v)
	}
	q.show(http.StatusOK, "settings", "Settings", d)
	return nil
}
