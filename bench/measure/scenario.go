package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Scenario is one thing that a suite measures. It keeps its outcome in B.
type Scenario[B any] struct {
	Name string
	// Run measures, and keeps the outcome in b.
	Run func(b B, ctx context.Context) error
}

// Names lists scenarios, separated by commas.
func Names[B any](list []Scenario[B]) string {
	var names []string
	for _, sc := range list {
		names = append(names, sc.Name)
	}
	return strings.Join(names, ",")
}

// Choose returns the scenarios with the listed names, in the order of all. Without a name it
// returns all of them.
func Choose[B any](all []Scenario[B], names string) ([]Scenario[B], error) {
	return ChooseBy(all, func(sc Scenario[B]) string { return sc.Name }, names)
}

// ChooseBy is like Choose, for scenarios of another type.
func ChooseBy[S any](all []S, nameOf func(S) string, names string) ([]S, error) {
	if names == "" {
		return all, nil
	}
	var known []string
	for _, sc := range all {
		known = append(known, nameOf(sc))
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no scenario %q; there are %s", name, strings.Join(known, ","))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(sc S) bool { return !slices.Contains(wanted, nameOf(sc)) }), nil
}
