package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"example.org/slipway/registry/notify"
)

// Webhooks knows the webhooks of a server, and changes them. The methods that name a
// webhook return an error that wraps notify.ErrNoWebhook if there is none.
type Webhooks interface {
	Webhooks(ctx context.Context) ([]notify.EndpointStatus, error)
	TestWebhook(ctx context.Context, name string) (notify.TestResult, error)
	// AddWebhook and ChangeWebhook return an error that wraps notify.ErrInvalid if there
	// cannot be such a webhook.
	AddWebhook(ctx context.Context, c notify.Change) error
	ChangeWebhook(ctx context.Context, c notify.Change) error
	RemoveWebhook(ctx context.Context, name string) error
}

// WebhookForm is what somebody enters for a webhook. What is stored of the URL and the
// secret is never shown; in a webhook that is changed, empty fields keep them.
type WebhookForm struct {
	Name, URL, Repositories string
	Format                  notify.Format
	Events                  []notify.Action
	Unsigned                bool
	// Change is true for a webhook that exists. To is where it is then, and Signed
	// whether it has a secret.
	Change bool
	To     string
	Signed bool
}

// Actions returns the events from which to choose.
func (f *WebhookForm) Actions() []notify.Action { return notify.ManagedActions() }

// Chosen reports whether an event is chosen.
func (f *WebhookForm) Chosen(a notify.Action) bool { return slices.Contains(f.Events, a) }

// CloudEvents reports whether the format is CloudEvents.
func (f *WebhookForm) CloudEvents() bool { return f.Format == notify.FormatCloudEvents }

// WebhooksPage is what the page of webhooks shows.
type WebhooksPage struct {
	Webhooks []notify.EndpointStatus
	// Form is of a new webhook, or of one that is changed.
	Form *WebhookForm
	// Remove is the webhook of which the page asks whether it is to be removed.
	Remove string
	// Done says what was done with the webhook Name, and Problem why nothing was.
	Done, Name, Problem string
	// Tested is the webhook that was tested, and Result what it answered.
	Tested string
	Result *notify.TestResult
}

// webhookVerbs are what forms do, with what the page says afterwards.
var webhookVerbs = map[string]string{"add": "was added.", "change": "was changed.", "pause": "is paused: it gets nothing, and events are not kept for it.",
	"resume": "gets events again.", "remove": "was removed, with the events that waited for it."}

// AskedWebhooks returns the page that the address asks for.
func AskedWebhooks(q url.Values) *WebhooksPage {
	p := &WebhooksPage{Remove: q.Get("remove"), Done: webhookVerbs[q.Get("done")], Name: q.Get("name")}
	if name := q.Get("change"); name != "" {
		p.Form = &WebhookForm{Name: name, Change: true}
	}
	return p
}

// Fill reads the list, and what is known of the webhook that is changed. The error wraps
// notify.ErrNoWebhook if the page is about a webhook that cannot be changed.
func (p *WebhooksPage) Fill(ctx context.Context, w Webhooks) (err error) {
	if p.Webhooks, err = w.Webhooks(ctx); err != nil {
		return err
	}
	find := func(name string) *notify.EndpointStatus {
		for i := range p.Webhooks {
			if st := &p.Webhooks[i]; st.Managed && st.Name == name {
				return st
			}
		}
		return nil
	}
	switch f := p.Form; {
	case p.Remove != "" && find(p.Remove) == nil:
		return notify.ErrNoWebhook
	case f == nil:
		p.Form = &WebhookForm{Format: notify.FormatDocker, Events: []notify.Action{notify.ActionPush, notify.ActionTag, notify.ActionDelete}}
	case f.Change:
		st := find(f.Name)
		if st == nil {
			return notify.ErrNoWebhook
		}
		f.To, f.Signed = st.To, st.Signed
		if p.Problem == "" { // otherwise what was entered stays
			f.Format, f.Events, f.Repositories = st.Format, st.Events, strings.Join(st.Repositories, " ")
		}
	}
	return nil
}

// readWebhookForm returns what was entered, and the change that it means.
func readWebhookForm(form url.Values, change bool) (*WebhookForm, notify.Change) {
	f := &WebhookForm{Name: strings.TrimSpace(form.Get("name")), URL: strings.TrimSpace(form.Get("url")), Repositories: form.Get("repositories"),
		Format: notify.Format(form.Get("format")), Unsigned: form.Get("unsigned") != "", Change: change, Events: []notify.Action{}}
	for _, a := range form["events"] {
		f.Events = append(f.Events, notify.Action(a))
	}
	c := notify.Change{Name: f.Name, Format: &f.Format, Events: f.Events, Repositories: append([]string{}, strings.Fields(f.Repositories)...)}
	if f.URL != "" || !change {
		c.URL = &f.URL
	}
	if secret := form.Get("secret"); secret != "" || f.Unsigned {
		if f.Unsigned {
			secret = ""
		}
		c.Secret = &secret
	}
	return f, c
}

// WebhookDone is what became of a form.
type WebhookDone struct {
	// Verb is what was tried with the webhook Name.
	Verb, Name string
	// Form is what was entered, unless the form had no fields for that.
	Form *WebhookForm
	// Result is the result of a test.
	Result *notify.TestResult
	Err    error
}

// DoWebhook does what a form says, on behalf of a user.
func DoWebhook(ctx context.Context, w Webhooks, form url.Values, by string) (d WebhookDone) {
	d.Verb, d.Name = form.Get("do"), strings.TrimSpace(form.Get("name"))
	if name := form.Get("test"); name != "" {
		d.Verb, d.Name = "test", name
	}
	var c notify.Change
	switch d.Verb {
	case "test":
		res, err := w.TestWebhook(ctx, d.Name)
		d.Result, d.Err = &res, err
		if err == nil && res.Error != "" {
			d.Err = errors.New(res.Error)
		}
	case "add":
		d.Form, c = readWebhookForm(form, false)
		c.By = by
		d.Err = w.AddWebhook(ctx, c)
	case "change":
		d.Form, c = readWebhookForm(form, true)
		c.By = by
		d.Err = w.ChangeWebhook(ctx, c)
	case "pause", "resume":
		paused := d.Verb == "pause"
		d.Err = w.ChangeWebhook(ctx, notify.Change{Name: d.Name, Paused: &paused, By: by})
	case "remove":
		d.Err = w.RemoveWebhook(ctx, d.Name)
	default:
		d.Verb, d.Err = "do nothing with", fmt.Errorf("%w: choose one of the buttons", notify.ErrInvalid)
	}
	return d
}

// Outcome is what the audit log says of it.
func (d *WebhookDone) Outcome() string {
	if d.Err != nil {
		return "failure"
	}
	return "success"
}

// Page returns what answers the form, with its status. It is nil if the browser is to be
// sent elsewhere, or gets an error.
func (d *WebhookDone) Page() (status int, p *WebhooksPage) {
	switch {
	case errors.Is(d.Err, notify.ErrInvalid):
		return http.StatusBadRequest, &WebhooksPage{Form: d.Form, Problem: strings.TrimPrefix(d.Err.Error(), notify.ErrInvalid.Error()+": ")}
	case d.Result != nil && !errors.Is(d.Err, notify.ErrNoWebhook):
		return http.StatusOK, &WebhooksPage{Tested: d.Name, Result: d.Result}
	}
	return 0, nil
}

// Query is the query of the page that says what was done.
func (d *WebhookDone) Query() string { return url.Values{"done": {d.Verb}, "name": {d.Name}}.Encode() }
