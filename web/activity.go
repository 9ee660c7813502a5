package web

import (
	"encoding/json"
	"net/http"

	"example.org/slipway/web/manage"
)

// activity shows who did what.
func (q *request) activity() error {
	d, err := manage.ReadActivity(q.ctx(), q.h.opts.System.Activity, q.r.URL.Query(), q.h.opts.Clock())
	if err != nil {
		return err
	}
	if d.Whole {
		b, err := json.Marshal(d.Report)
		if err == nil {
			q.w.Header().Set("Content-Type", "application/json")
			q.w.Header().Set("Content-Disposition", `attachment; filename="activity.json"`)
			_, _ = q.w.Write(b) // the client may be gone
		}
		return err
	}
	status := http.StatusOK
	if d.Problem != "" {
		status = http.StatusBadRequest
	}
	q.show(status, "activity", "Activity", d)
	return nil
}
