package web

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxReports is how many entries of the directory are listed, and maxReportFiles is
	// how many files of a report are listed.
	maxReports     = 1000
	maxReportFiles = 200
)

// reportPolicy isolates a report: the report may show itself and nothing else. Reports
// are made of traces and names that anybody may have sent here.
const reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"

// reportTypes are the types of the report files that are served, by file name extension.
// All except pages and pictures are shown as text.
var reportTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".svg": "image/svg+xml", ".csv": "text/plain; charset=utf-8", ".json": "text/plain; charset=utf-8",
	".txt": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8", ".jsonl": "text/plain; charset=utf-8",
}

// reportRow is a row for a report or one of its files. Path is below the page and escaped
// for an address.
type reportRow struct {
	Name, Path string
	Dir        bool
	Size       int64
	Time       time.Time
}

// reports lists all reports or the reports of a directory, or serves a file.
func (q *request) reports() error {
	d := struct {
		Configured bool
		Dir        string
		Rows       []reportRow
		More       bool
	}{Configured: q.h.opts.System.Reports != ""}
	if !d.Configured {
		if q.rest != "" {
			return notFound("There is no report of that name.")
		}
		q.show(http.StatusOK, "reports", "Reports", d)
		return nil
	}
	root, err := os.OpenRoot(q.h.opts.System.Reports)
	switch {
	case errors.Is(err, fs.ErrNotExist) && q.rest == "":
		q.show(http.StatusOK, "reports", "Reports", d)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return notFound("There is no report of that name.")
	case err != nil:
		return err
	}
	defer root.Close()
	name := strings.TrimSuffix(q.rest, "/")
	if name != "" && (!fs.ValidPath(name) || hidden(name)) {
		return notFound("There is no report of that name.")
	}
	fi, err := root.Lstat(cmp.Or(name, "."))
	switch {
	case err != nil || !fi.IsDir() && !fi.Mode().IsRegular():
		return notFound("There is no report of that name.")
	case !fi.IsDir():
		return q.reportFile(root, name)
	}
	d.Dir = name
	limit := maxReportFiles
	if name == "" {
		limit = maxReports
	}
	if d.Rows, d.More, err = reportRows(root, cmp.Or(name, "."), limit); err != nil {
		return err
	}
	q.show(http.StatusOK, "reports", cmp.Or(name, "Reports"), d)
	return nil
}

// hidden reports whether a path has a name that begins with a dot. Only the requested
// path counts. A user who links a directory of the reports to a hidden directory makes
// the hidden one visible.
func hidden(name string) bool { return strings.HasPrefix(name, ".") || strings.Contains(name, "/.") }

// reportRows lists directories and the files that are served, the newest first. If there
// are more than limit, it lists some of them in an arbitrary selection, which may lack
// the newest.
func reportRows(root *os.Root, dir string, limit int) (rows []reportRow, more bool, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	entries, err := f.ReadDir(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	more = len(entries) > limit
	for _, e := range entries[:min(len(entries), limit)] {
		fi, err := e.Info()
		if err != nil || hidden(e.Name()) {
			continue // it has just been deleted
		}
		if !fi.IsDir() && (!fi.Mode().IsRegular() || reportTypes[path.Ext(e.Name())] == "") {
			continue
		}
		row := reportRow{Name: e.Name(), Path: path.Join(dir, e.Name()), Dir: fi.IsDir(), Size: fi.Size(), Time: fi.ModTime()}
		if row.Dir {
			// A directory that slipway made has one page that shows all of it.
			if page, err := root.Lstat(path.Join(row.Path, "index.html")); err == nil && page.Mode().IsRegular() {
				row.Path, row.Time = path.Join(row.Path, "index.html"), page.ModTime()
			}
		}
		row.Path = (&url.URL{Path: row.Path}).EscapedPath()
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b reportRow) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(a.Name, b.Name)) })
	return rows, more, nil
}

// reportFile serves a file of a report, with the policy that isolates it.
func (q *request) reportFile(root *os.Root, name string) error {
	mime, ok := reportTypes[path.Ext(name)]
	if !ok {
		return notFound("There is no report of that name.")
	}
	// Somebody who can write the directory may have put a FIFO there meanwhile. Opening a
	// FIFO would block without O_NONBLOCK.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return notFound("There is no report of that name.")
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return notFound("There is no report of that name.")
	}
	h := q.w.Header()
	h.Set("Content-Security-Policy", reportPolicy)
	h.Set("Content-Type", mime)
	h.Set("Content-Length", strconv.FormatInt(fi.Size(), 10))
	if q.r.Method == http.MethodHead {
		return nil
	}
	_, _ = io.CopyN(q.w, f, fi.Size()) // an error means that the client has gone
	return nil
}
