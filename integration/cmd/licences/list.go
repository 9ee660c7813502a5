package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// name returns the name of a module as people read it.
func (m *module) name() string {
	if m.path == "std" {
		return "Go standard library " + m.version
	}
	return m.path + " " + m.version
}

// tally counts modules by licence.
func tally(modules []*module) string {
	n := map[string]int{}
	for _, m := range modules {
		n[strings.Join(m.licences, " and ")]++
	}
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%d %s", n[id], id))
	}
	return strings.Join(parts, ", ")
}

// write lists the modules that a release's binaries link, and then each text once.
func write(w io.Writer, modules []*module) {
	fmt.Fprint(w, "Slipway is under the licence in LICENSE. Its binaries have these modules linked into them,\neach under its own licence; the texts follow.\n\n")
	width := 0
	for _, m := range modules {
		if m.listed {
			width = max(width, len(m.name()))
		}
	}
	var order []string
	users := map[string][]string{} // from content to the modules that have it
	for _, m := range modules {
		if !m.listed {
			continue
		}
		fmt.Fprintf(w, "%-*s  %s\n", width, m.name(), strings.Join(m.licences, " and "))
		for _, t := range m.texts {
			content := strings.TrimSpace(t.content)
			if users[content] == nil {
				order = append(order, content)
			}
			users[content] = append(users[content], m.name()+", "+t.name)
		}
	}
	for _, content := range order {
		fmt.Fprintf(w, "\n%s\n", strings.Repeat("=", 80))
		for _, u := range users[content] {
			fmt.Fprintln(w, u)
		}
		fmt.Fprintf(w, "%s\n\n%s\n", strings.Repeat("=", 80), content)
	}
}
