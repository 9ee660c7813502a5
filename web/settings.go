package web

import (
	"net/http"

	"example.org/slipway/web/manage"
)

// settings shows the configuration.
func (q *request) settings() error {
	var all manage.Settings
	if f := q.h.opts.System.Settings; f != nil {
		all = f()
	}
	d := manage.FindSettings(all, q.r.URL.Query(), q.h.opts.Clock())
	d.Open = q.h.access == nil
	q.show(http.StatusOK, "settings", "Settings", d)
	return nil
}
