// Package dashboard makes the Grafana boards in deploy/grafana. Go code describes what
// they show, with a function for each board, and scripts/dashboards writes the JSON from
// that.
//
// A board queries Prometheus for what slipway serve, slipway agent and slipway trace
// replay serve at /metrics, scraped as the jobs slipway, slipway-agent and slipway-replay
// (deploy/prometheus/prometheus.yml). No panel is empty only because nothing has happened
// yet: a counter that appears with its first event is shown as 0 before.
//
// The package knows metrics only by name. A test runs every query against the real
// programs to show that the metrics exist (integration/dashboards).
package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Boards returns all boards.
func Boards() []*Board {
	return []*Board{serverBoard(), cacheBoard(), mirrorBoard(), gearBoard(), volumesBoard(), replayBoard()}
}

// File returns the name of the board's file.
func (b *Board) File() string { return b.UID + ".json" }

// JSON returns the content of the board's file.
func (b *Board) JSON() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // queries have < and >
	if err := e.Encode(b); err != nil {
		return nil, fmt.Errorf("encode the board %s: %w", b.UID, err)
	}
	return out.Bytes(), nil
}

// Write writes the boards into a directory that exists.
func Write(dir string) error {
	for _, b := range Boards() {
		text, err := b.JSON()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, b.File()), text, 0o644); err != nil {
			return fmt.Errorf("write a board: %w", err)
		}
	}
	return nil
}

// Check returns an error unless the boards in a directory are these, and no others.
func Check(dir string) error {
	want := map[string][]byte{}
	for _, b := range Boards() {
		text, err := b.JSON()
		if err != nil {
			return err
		}
		want[b.File()] = text
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return fmt.Errorf("look for boards: %w", err)
	}
	for _, file := range files {
		text, ok := want[filepath.Base(file)]
		if !ok {
			return fmt.Errorf("%s is of no board", file)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a board: %w", err)
		}
		if !bytes.Equal(got, text) {
			return fmt.Errorf("%s is not current", file)
		}
		delete(want, filepath.Base(file))
	}
	for name := range want {
		return fmt.Errorf("%s is missing", filepath.Join(dir, name))
	}
	return nil
}

// Query is a query of a panel to Prometheus.
type Query struct {
	Panel, Expr, Legend string
}

// Queries returns the queries of all panels, with the board's variables in them.
func (b *Board) Queries() []Query {
	var list []Query
	for _, p := range b.Panels {
		for _, t := range p.Targets {
			list = append(list, Query{Panel: p.Title, Expr: t.Expr, Legend: t.LegendFormat})
		}
	}
	return list
}

// variable matches a variable in a query.
var variable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// Substitute replaces the variables in an expression by values, as Grafana does. A
// variable without a value is an error.
func Substitute(expr string, values map[string]string) (string, error) {
	var unknown []string
	out := variable.ReplaceAllStringFunc(expr, func(v string) string {
		name := strings.Trim(v, "${}")
		value, ok := values[name]
		if !ok {
			unknown = append(unknown, name)
		}
		return value
	})
	if unknown != nil {
		return "", fmt.Errorf("%s: no value for %s", expr, strings.Join(unknown, ", "))
	}
	return out, nil
}
