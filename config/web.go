package config

import "time"

// Web configures the web page.
type Web struct {
	Disabled bool          `yaml:"disabled" doc:"True serves no web page."`
	Title    string        `yaml:"title" default:"Slipway" doc:"Title of the pages."`
	Session  time.Duration `yaml:"session" default:"12h" min:"1m" doc:"How long somebody who logs in stays logged in."`
	Reports  string        `yaml:"reports" doc:"Directory of reports of slipway trace and slipway load, which the page shows. Empty shows none." example:"/var/lib/slipway/reports"`
}
