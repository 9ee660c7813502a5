// Package activity answers who did what, from the audit log: the file that is written
// now, and the files beside it that a log rotation has set aside, even if they are
// compressed.
package activity

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/auth/patterns"
)

const (
	// DefaultLimit is how many events are returned by default.
	DefaultLimit = 100
	// MaxLimit bounds the events of one answer, which take about 300 bytes each.
	MaxLimit = 100_000
	// maxLine bounds a line in bytes. The fields of an event are bounded, too.
	maxLine = 64 << 10
)

// Filter says which events are wanted. Empty fields match everything.
type Filter struct {
	// User is the subject, such as alice or robot:ci.
	User string `json:"user,omitempty"`
	// Repository is a pattern as in the access rules.
	Repository string `json:"repository,omitempty"`
	// Actions are names of events: push, delete, tag, login, token, denied, admin.
	Actions []string `json:"actions,omitempty"`
	// Since and Until bound the time; an event at Until does not match.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Limit bounds the number of events that are returned. The newest ones are returned.
	// Default: DefaultLimit.
	Limit int `json:"limit,omitempty"`
	// Skip is the number of the newest matching events that are left out.
	Skip int `json:"skip,omitempty"`
}

// Report is the answer to a filter.
type Report struct {
	// Events are ordered by time, the newest first.
	Events []auth.Event `json:"events"`
	// More says that older events match, too.
	More bool `json:"more"`
	// Unreadable is the number of lines that are no events.
	Unreadable int `json:"unreadable,omitempty"`
}

// Read returns the events of an audit log that match.
func Read(ctx context.Context, path string, f Filter) (rep Report, err error) {
	repo := func(string) bool { return true }
	if f.Repository != "" {
		if repo, err = patterns.Compile(f.Repository); err != nil {
			return rep, err
		}
	}
	limit := cmp.Or(f.Limit, DefaultLimit)
	if limit < 0 || limit > MaxLimit {
		return rep, fmt.Errorf("the limit %d is not between 1 and %d", limit, MaxLimit)
	}
	if f.Skip < 0 || f.Skip > MaxLimit {
		return rep, fmt.Errorf("%d events cannot be left out; at most %d can, so narrow the time", f.Skip, MaxLimit)
	}
	want := f.Skip + limit
	files, err := filesOf(path)
	if err != nil {
		return rep, err
	}
	for _, file := range files { // the newest first
		if rep.More {
			break
		}
		list, bad, err := matching(ctx, file, func(e *auth.Event) bool {
			return (f.User == "" || e.Subject == f.User) && (f.Repository == "" || e.Repo != "" && repo(e.Repo)) &&
				(len(f.Actions) == 0 || slices.Contains(f.Actions, e.Event)) &&
				!e.Time.Before(f.Since) && (f.Until.IsZero() || e.Time.Before(f.Until))
		}, want-len(rep.Events)+1)
		if err != nil {
			return rep, err
		}
		rep.Unreadable += bad
		slices.Reverse(list)
		rep.Events = append(rep.Events, list...)
		if len(rep.Events) > want {
			rep.Events, rep.More = rep.Events[:want], true
		}
	}
	slices.SortStableFunc(rep.Events, func(a, b auth.Event) int { return b.Time.Compare(a.Time) })
	rep.Events = rep.Events[min(f.Skip, len(rep.Events)):]
	return rep, nil
}

// filesOf returns the audit log and the files that a rotation has made of it, such as
// audit.log.1 and audit.log.2.gz. The file that was written last comes first.
func filesOf(path string) ([]string, error) {
	names, err := filepath.Glob(escaped(path) + `[.\-]*`)
	if err != nil {
		return nil, err
	}
	type file struct {
		name string
		at   time.Time
	}
	var list []file
	for _, name := range names {
		fi, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if fi.Mode().IsRegular() {
			list = append(list, file{name, fi.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b file) int { return cmp.Or(b.at.Compare(a.at), strings.Compare(a.name, b.name)) })
	out := []string{path}
	for _, f := range list {
		out = append(out, f.name)
	}
	return out, nil
}

// escaped escapes the characters that have a meaning in file patterns.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// matching returns the last n events of a file that match, and the number of lines that
// are no events.
func matching(ctx context.Context, path string, match func(*auth.Event) bool, n int) (out []auth.Event, bad int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, 0, fmt.Errorf("read the audit log %s: %w", path, err)
		}
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		var e auth.Event
		if json.Unmarshal(in.Bytes(), &e) != nil || e.Event == "" {
			bad++
			continue
		}
		if !match(&e) {
			continue
		}
		if out = append(out, e); len(out) >= 2*n {
			out = append(out[:0], out[len(out)-n:]...)
		}
	}
	if len(out) > n {
		out = out[len(out)-n:]
	}
	if err := in.Err(); err != nil {
		return nil, 0, fmt.Errorf("read the audit log %s: %w", path, err)
	}
	return out, bad, nil
}
