package dashboard_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/internal/dashboard"
)

// TestCurrent checks that the delivered dashboards match the code.
func TestCurrent(t *testing.T) {
	if err := dashboard.Check(filepath.Join("..", "..", "deploy", "grafana")); err != nil {
		t.Errorf("%v: go run ./scripts/dashboards writes them", err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if err := dashboard.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := dashboard.Check(dir); err != nil {
		t.Errorf("as written: %v", err)
	}
	file := filepath.Join(dir, dashboard.Boards()[0].File())
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		change     func() error
	}{
		{"a board that was edited by hand", "not current", func() error { return os.WriteFile(file, append(text, '\n'), 0o600) }},
		{"a board that is gone", "missing", func() error { return os.Remove(file) }},
		{"a board of nobody", "of no board", func() error {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "more.json"), text, 0o600)
		}},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if err := dashboard.Check(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
	}
}

// TestPanels checks that Grafana accepts the boards and that no panel hides another.
func TestPanels(t *testing.T) {
	uids := map[string]bool{}
	for _, b := range dashboard.Boards() {
		if uids[b.UID] || b.Title == "" {
			t.Errorf("%s: titled %q, and another has the uid: %v", b.UID, b.Title, uids[b.UID])
		}
		uids[b.UID] = true
		ids, taken, titles := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
		row := ""
		for _, p := range b.Panels {
			if p.Type == "row" {
				row = p.Title
			} else if len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" {
				t.Errorf("%s: %s has %d queries and the unit %q", b.UID, p.Title, len(p.Targets), p.FieldConfig.Defaults.Unit)
			}
			if title := row + "/" + p.Type + "/" + p.Title; ids[p.ID] || titles[title] || p.Title == "" {
				t.Errorf("%s: panel %d %q is there twice, or has no title", b.UID, p.ID, title)
			} else {
				ids[p.ID], titles[title] = true, true
			}
			g := p.GridPos
			if g.X < 0 || g.X+g.W > 24 || g.W < 1 || g.H < 1 {
				t.Errorf("%s: %s is at %+v", b.UID, p.Title, g)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s lies on %s", b.UID, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

var (
	label    = regexp.MustCompile(`\{\{(\w+)\}\}`)
	grouping = regexp.MustCompile(`(?:by|without) \(([^)]*)\)`)
)

// TestQueries checks that every variable is defined on the board, that no placeholder is
// left, and that a legend has only labels that the sums of the query keep.
func TestQueries(t *testing.T) {
	for _, b := range dashboard.Boards() {
		values := map[string]string{"__rate_interval": "1m"}
		for _, v := range b.Templating.List {
			values[v.Name] = ".*"
			if strings.Contains(v.Query.Query, "@") {
				t.Errorf("%s: variable %s: %s", b.UID, v.Name, v.Query.Query)
			}
		}
		for _, q := range b.Queries() {
			expr, err := dashboard.Substitute(q.Expr, values)
			if err != nil || strings.ContainsAny(expr, "@$") {
				t.Errorf("%s: %s: %v: %s", b.UID, q.Panel, err, expr)
			}
			if !strings.Contains(expr, `job="slipway`) {
				t.Errorf("%s: %s is of any job: %s", b.UID, q.Panel, expr)
			}
			by := grouping.FindStringSubmatch(q.Expr)
			for _, l := range label.FindAllStringSubmatch(q.Legend, -1) {
				if by != nil && !slices.Contains(strings.Split(by[1], ", "), l[1]) || by == nil && strings.Contains(q.Expr, "sum(") {
					t.Errorf("%s: %s: the legend %q has a label that is summed up by %s", b.UID, q.Panel, q.Legend, q.Expr)
				}
			}
		}
	}
}

// TestModel checks that a written board is read back completely, so that no field is
// lost.
func TestModel(t *testing.T) {
	for _, b := range dashboard.Boards() {
		text, err := b.JSON()
		if err != nil {
			t.Fatal(err)
		}
		got := &dashboard.Board{}
		if err := json.Unmarshal(text, got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b, got); d != "" {
			t.Errorf("%s (-written +read):\n%s", b.UID, d)
		}
	}
}

func TestSubstitute(t *testing.T) {
	values := map[string]string{"a": "1", "__rate_interval": "5m"}
	for _, c := range []struct{ expr, want string }{
		{"rate(x[$__rate_interval])", "rate(x[5m])"},
		{`x{y="${a}",z="$a"}`, `x{y="1",z="1"}`},
		{"x", "x"},
		{"$b + $a", ""},
		{"$ab", ""},
	} {
		got, err := dashboard.Substitute(c.expr, values)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("Substitute(%q): got %q, %v, want %q", c.expr, got, err, c.want)
		}
	}
}
