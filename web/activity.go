package web

import (
	"net/http"

	"example.org/slipway/web/manage"
)

// activity shows who did what.
func (q *request) activity() error {
	d, err := manage.ReadActivity(q.ctx(), q.h.opts.System.Activity, q.r.URL.Query(), q.h.opts.Clock())
	if err != nil {
		return err
	}
	status := http.StatusOK
	if d.Problem != "" {
		status = http.StatusBadRequest
	}
	q.show(status, "activity", "Activity", d)
	return nil
}
