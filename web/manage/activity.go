package manage

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/registry/activity"
	"example.org/slipway/registry/auth/patterns"
)

// Log returns who did what, from the audit log.
type Log func(ctx context.Context, f activity.Filter) (activity.Report, error)

// activityPage is how many events are listed on a page.
const activityPage = 100

// Activity is what the page of the audit log shows.
type Activity struct {
	// Recorded reports that there is an audit log.
	Recorded bool
	// User, Repository, Action, Since and Until are the filters as they were entered.
	// Since and Until are days, and both belong to the time that is shown.
	User, Repository, Action, Since, Until string
	// Actions are the actions to choose from.
	Actions []string
	// Problem says what is wrong with the filters.
	Problem string
	Report  activity.Report
	// From and To are the numbers of the first and of the last event, counted from 1.
	// Newer and Older lead to the adjacent pages; they are empty if there is no such
	// page.
	From, To     int
	Newer, Older string
	// Export leads to all events that match, as JSON. Whole reports that Report is that.
	Export string
	Whole  bool
}

// ReadActivity returns the page that a query names. log is nil without an audit log.
func ReadActivity(ctx context.Context, log Log, query url.Values, now time.Time) (*Activity, error) {
	d := &Activity{Recorded: log != nil, User: strings.TrimSpace(query.Get("user")), Repository: strings.TrimSpace(query.Get("repository")),
		Action: query.Get("action"), Since: query.Get("since"), Until: query.Get("until"),
		Actions: []string{"push", "tag", "delete", "restore", "login", "token", "denied", "admin"}}
	if d.Action != "" && !slices.Contains(d.Actions, d.Action) {
		d.Actions = append(d.Actions, d.Action)
	}
	f := d.filter()
	if !d.Recorded || d.Problem != "" {
		return d, nil
	}
	// Pages are counted from the moment at which the first was shown, so that what
	// happens meanwhile moves nothing from one page to another.
	at, err := time.Parse(time.RFC3339Nano, query.Get("at"))
	if err != nil {
		at = now
	}
	if f.Until.IsZero() || at.Before(f.Until) {
		f.Until = at
	}
	if n, err := strconv.Atoi(query.Get("from")); err == nil {
		f.Skip = max(0, min(n, activity.MaxLimit))
	}
	f.Limit = activityPage
	if d.Whole = query.Get("format") == "json"; d.Whole {
		f.Skip, f.Limit = 0, activity.MaxLimit
	}
	if d.Report, err = log(ctx, f); err != nil {
		return nil, err
	}
	d.Export = d.link(at, 0) + "&format=json"
	d.From, d.To = f.Skip+1, f.Skip+len(d.Report.Events)
	if f.Skip > 0 {
		d.Newer = d.link(at, max(0, f.Skip-activityPage))
	}
	if d.Report.More && f.Skip+activityPage <= activity.MaxLimit {
		d.Older = d.link(at, f.Skip+activityPage)
	}
	return d, nil
}

// filter returns the filter that was entered, or notes what is wrong with it.
func (d *Activity) filter() activity.Filter {
	f := activity.Filter{User: d.User, Repository: d.Repository}
	if d.Action != "" {
		f.Actions = []string{d.Action}
	}
	if d.Repository != "" {
		if _, err := patterns.Compile(d.Repository); err != nil {
			d.Problem = "Repositories are a name or a pattern such as team/**: " + err.Error() + "."
		}
	}
	since, err1 := day(d.Since)
	until, err2 := day(d.Until)
	if cmp.Or(err1, err2) != nil {
		d.Problem = "Days are written as 2026-01-31."
	}
	f.Since = since
	if !until.IsZero() {
		f.Until = until.AddDate(0, 0, 1)
	}
	return f
}

// day parses a day, which is in UTC as all times of the pages. The empty text is the zero
// time.
func day(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.DateOnly, s)
}

// link returns the query of a page with the same filters.
func (d *Activity) link(at time.Time, from int) string {
	v := url.Values{"at": {at.UTC().Format(time.RFC3339Nano)}}
	if from > 0 {
		v.Set("from", strconv.Itoa(from))
	}
	for name, value := range map[string]string{"user": d.User, "repository": d.Repository, "action": d.Action, "since": d.Since, "until": d.Until} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return "?" + v.Encode()
}
