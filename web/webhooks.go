package web

import (
	"net/http"

	"example.org/slipway/web/manage"
)

// webhooks shows the webhooks.
func (q *request) webhooks() error { return q.showWebhooks(&manage.WebhooksPage{}) }

func (q *request) showWebhooks(d *manage.WebhooksPage) (err error) {
	if d.Webhooks, err = q.h.opts.System.Webhooks.Webhooks(q.ctx()); err != nil {
		return err
	}
	q.show(http.StatusOK, "webhooks", "Webhooks", d)
	return nil
}

// testWebhook sends a webhook an event.
func (q *request) testWebhook() error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	name := q.r.PostFormValue("test")
	res, err := q.h.opts.System.Webhooks.TestWebhook(q.ctx(), name)
	if err != nil {
		return notFound("There is no such webhook.")
	}
	outcome := "success"
	if res.Error != "" {
		outcome = "failure"
	}
	q.record("admin", outcome, "test webhook", "", name)
	return q.showWebhooks(&manage.WebhooksPage{Tested: name, Result: &res})
}
