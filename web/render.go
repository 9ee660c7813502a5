package web

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/web/format"
)

//go:embed all:templates
var templateFiles embed.FS

// renderer holds the templates of pages. Each page has its own template, combined with
// the frame and the shared parts. The files of the shared parts have names that begin
// with an underscore.
type renderer struct {
	base  string
	pages map[string]*template.Template
}

func newRenderer(base string, a assets) (*renderer, error) {
	funcs := template.FuncMap{
		"base":  func() string { return base },
		"asset": func(name string) string { return base + a.path(name) },
		"bytes": format.Bytes,
		"time":  format.Time,
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"short": format.ShortDigest,
		"some":  format.Some, "breaks": format.Breaks, "shortref": format.ShortReference,
		"count": format.Count, "percent": format.Percent, "took": format.Took,
		"count64": func(n int) string { return format.Count(int64(n)) }, "showname": format.Visible, "showtext": format.VisibleLines, "shareof": format.Share,
		"strip": func(part, whole int64) int { return int(300 * format.Share(part, whole)) }, // a strip has 300 units
	}
	shared, err := template.New("").Funcs(funcs).ParseFS(templateFiles, "templates/_*.html")
	if err != nil {
		return nil, err
	}
	entries, err := templateFiles.ReadDir("templates")
	if err != nil {
		return nil, err
	}
	r := &renderer{base: base, pages: map[string]*template.Template{}}
	for _, e := range entries {
		name := e.Name()
		if name[0] == '_' {
			continue
		}
		t, err := shared.Clone()
		if err == nil {
			t, err = t.ParseFS(templateFiles, "templates/"+name)
		}
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
		r.pages[name[:len(name)-len(".html")]] = t
	}
	return r, nil
}

// frame is what every page's template gets. Data is specific to the page.
type frame struct {
	// Site is the title of all pages, and Title is the title of this page. Here is the
	// name of the navigation entry to which the page belongs.
	Site, Title, Here string
	Version           string
	// User is the user who is logged in. Admin reports whether the user may manage the
	// registry. Login reports whether there are users at all.
	User         string
	Admin, Login bool
	Data         any
}

// show answers with a page: the template of the given name, within the frame.
func (q *request) show(status int, name, title string, data any) {
	var b bytes.Buffer
	f := frame{Site: q.h.opts.Title, Title: title, Here: q.here(name), Version: q.h.opts.Version,
		Admin: q.may("", auth.Admin), Login: q.h.access != nil, User: q.user(), Data: data}
	if err := q.h.render.pages[name].ExecuteTemplate(&b, "frame", &f); err != nil {
		q.h.log.Error("a template of the web failed", "template", name, "error", err)
		http.Error(q.w, "the page could not be made; the log says why", http.StatusInternalServerError)
		return
	}
	h := q.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	q.w.WriteHeader(status)
	if q.r.Method != http.MethodHead {
		_, _ = q.w.Write(b.Bytes())
	}
}
