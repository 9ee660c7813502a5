package web

import (
	"net/http"
	"strings"
	"time"

	"example.org/slipway/registry/auth"
)

// Settings is how a server is configured, without secrets.
type Settings struct {
	// Values in the order of the configuration.
	Values []Setting
	// Rules of access, and Methods by which clients prove who they are.
	Rules   []auth.Rule
	Methods []string
	// Build facts, and the addresses the server listens on.
	Build, Listeners []Fact
	Started          time.Time
}

// Setting is one value. From says where it was set; empty: it is the default.
type Setting struct{ Key, Value, Doc, From string }

// settingsData is what the page shows.
type settingsData struct {
	Settings
	Groups []settingGroup
	Search string
	// Set: only what is not the default.
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
