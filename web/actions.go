package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// action is an operation that a page of the system offers, at /ui/PAGE/NAME. A GET
// explains it and shows the last run; a POST begins it.
type action struct {
	page, name  string
	title, verb string
	// text explains what the action does and what cannot be undone.
	text []string
	// preview reports that the action can be tried without changing anything. danger
	// reports that it removes something.
	preview, danger bool
	inputs          []input
	// there returns why the action cannot be done here, or "" if it can. If it is nil,
	// the action can always be done.
	there func(*Handler) string
	// work returns the work that a form requests. dry is set for a preview.
	work func(h *Handler, form url.Values, dry bool) (work, error)
}

// input is a field of an action's form.
type input struct {
	Name, Label, Help, Type, Value string
	Required                       bool
}

// actions returns all actions.
func actions() []action {
	return slices.Concat(storageActions(), cacheActions(), mirrorActions(), replicationActions())
}

// action returns the action at the path of the request.
func (q *request) action() (*action, bool) {
	page := q.pageName()
	for i := range q.h.actions {
		a := &q.h.actions[i]
		if a.page == page && a.name == q.rest {
			return a, true
		}
	}
	return nil, false
}

// pageName is the first segment of the path below the page's root.
func (q *request) pageName() string {
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(q.r.URL.Path, q.h.opts.Prefix), Root), "/")
	return name
}

// actionData is what an action's page shows.
type actionData struct {
	Page, Name, Title, Verb string
	Text                    []string
	Preview, Danger         bool
	Inputs                  []input
	// Absent says why the action cannot be done here. Problem says what was wrong with
	// the form.
	Absent, Problem string
	// Job is the last run. Other is another job that is running.
	Job, Other *Job
}

// showAction shows the page of an action: the confirmation and the last run.
func (q *request) showAction(a *action, status int, problem string) error {
	d := &actionData{Page: a.page, Name: a.name, Title: a.title, Verb: a.verb, Text: a.text, Preview: a.preview, Danger: a.danger, Problem: problem}
	if a.there != nil {
		d.Absent = a.there(q.h)
	}
	for _, i := range a.inputs {
		if v := q.r.FormValue(i.Name); v != "" {
			i.Value = v
		}
		d.Inputs = append(d.Inputs, i)
	}
	d.Job = q.h.jobs.get(a.page + "/" + a.name)
	if c := q.h.jobs.current(); c != nil && c.Name != a.page+"/"+a.name {
		d.Other = c
	}
	q.show(status, "action", a.title, d)
	return nil
}

// doAction begins or stops an action, and shows its page.
func (q *request) doAction() error {
	a, ok := q.action()
	if !ok {
		return notFound("There is no page of that name.")
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &problem{status: http.StatusBadRequest, text: "The form could not be read.", err: err}
	}
	job := a.page + "/" + a.name
	do := q.r.PostForm.Get("do")
	if a.there != nil {
		if why := a.there(q.h); why != "" {
			return q.showAction(a, http.StatusConflict, "")
		}
	}
	dry := a.preview && do == "preview"
	switch {
	case do == "stop":
		q.h.jobs.end(job)
		q.record("admin", "success", "stop "+job, "", "")
	case do == "run" || dry:
		w, err := a.work(q.h, q.r.PostForm, dry)
		if err != nil {
			return q.showAction(a, http.StatusBadRequest, err.Error())
		}
		title, what := a.title, job
		if dry {
			title, what = a.title+", a preview", job+" preview"
		}
		err = q.beginJob(job, title, what, reference(a, q.r.PostForm), w)
		var busy *errBusy
		switch {
		case errors.As(err, &busy):
			return q.showAction(a, http.StatusConflict, busy.Error())
		case err != nil:
			return &problem{status: http.StatusServiceUnavailable, text: "The server is stopping.", err: err}
		}
	default:
		return q.showAction(a, http.StatusBadRequest, "Say what is to be done: choose one of the buttons.")
	}
	to := q.h.opts.Prefix + Root + job
	if form := reference(a, q.r.PostForm); form != "" {
		to += "?" + form // whoever has seen a preview runs the same
	}
	http.Redirect(q.w, q.r, to, http.StatusSeeOther)
	return nil
}

// reference returns what the audit log records of a form, encoded as a query.
func reference(a *action, form url.Values) string {
	v := url.Values{}
	for _, i := range a.inputs {
		if s := form.Get(i.Name); s != "" {
			v.Set(i.Name, s)
		}
	}
	return v.Encode()
}
