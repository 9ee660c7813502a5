package web

import (
	"context"
	"net/http"
	"net/url"

	"example.org/slipway/web/manage"
)

// replication shows the rules of replication, or a run.
func (q *request) replication() error {
	if a, ok := q.action(); ok {
		return q.showAction(a, http.StatusOK, "")
	}
	rules, err := q.h.opts.System.Replication.Status(q.ctx())
	if err == nil {
		q.show(http.StatusOK, "replication", "Replication", rules)
	}
	return err
}

func replicationActions() []action {
	return []action{{page: "replication", name: "run", title: "Replicate", verb: "Replicate", preview: true,
		inputs: []input{{Name: "rule", Label: "Rule", Type: "text", Required: true}},
		text:   []string{"Compares both sides of a rule, and copies what differs. A preview only compares."},
		work: func(h *Handler, form url.Values, dry bool) (work, error) {
			return func(ctx context.Context, progress func(string)) (*manage.Outcome, error) {
				return manage.Replicate(ctx, h.opts.System.Replication, form.Get("rule"), dry, progress)
			}, nil
		}}}
}
