package measure

import (
	"context"
	"errors"
	"flag"
	"io"
	"testing"
)

// TestSuites checks the exit status of every outcome.
func TestSuites(t *testing.T) {
	parse := func(args []string) (string, error) {
		fl := flag.NewFlagSet("x", flag.ContinueOnError)
		fl.SetOutput(io.Discard)
		return "", fl.Parse(args)
	}
	result := func(good bool, err error) Suite {
		return NewSuite("x", "", parse, func(string, context.Context) (bool, error) { return good, err })
	}
	other := NewSuite("y", "", parse, func(string, context.Context) (bool, error) { panic("not asked for") })
	for name, c := range map[string]struct {
		suite Suite
		args  []string
		want  int
	}{
		"good":         {result(true, nil), []string{"x"}, 0},
		"missed":       {result(false, nil), []string{"x"}, 1},
		"failed":       {result(true, errors.New("it broke")), []string{"x"}, 1},
		"help":         {result(false, nil), []string{"x", "-h"}, 0},
		"unknown flag": {result(true, nil), []string{"x", "-no"}, 2},
		"no suite":     {result(true, nil), nil, 2},
		"other suite":  {result(true, nil), []string{"z"}, 2},
	} {
		if got := run(t.Context(), []Suite{other, c.suite}, c.args); got != c.want {
			t.Errorf("%s: exit status %d, want %d", name, got, c.want)
		}
	}
}
