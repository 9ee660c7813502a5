package web

import (
	"errors"
	"net/http"

	"example.org/slipway/registry/notify"
	"example.org/slipway/web/manage"
)

// webhooks shows the webhooks.
func (q *request) webhooks() error {
	return q.showWebhooks(http.StatusOK, manage.AskedWebhooks(q.r.URL.Query()))
}

func (q *request) showWebhooks(status int, d *manage.WebhooksPage) error {
	err := d.Fill(q.ctx(), q.h.opts.System.Webhooks)
	if err == nil {
		q.show(status, "webhooks", "Webhooks", d)
	}
	return noWebhook(err)
}

// doWebhooks tests or changes a webhook.
func (q *request) doWebhooks() error {
	if err := q.parseForm(); err != nil {
		return err
	}
	d := manage.DoWebhook(q.ctx(), q.h.opts.System.Webhooks, q.r.PostForm, q.user())
	q.record("admin", d.Outcome(), d.Verb+" webhook", "", d.Name)
	if status, page := d.Page(); page != nil {
		return q.showWebhooks(status, page)
	}
	if d.Err == nil {
		http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+"webhooks?"+d.Query(), http.StatusSeeOther)
	}
	return noWebhook(d.Err)
}

func noWebhook(err error) error {
	if errors.Is(err, notify.ErrNoWebhook) {
		return notFound("There is no such webhook, or it is in the configuration.")
	}
	return err
}
