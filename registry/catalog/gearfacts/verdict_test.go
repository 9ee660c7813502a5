package gearfacts

import (
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// TestVerdictsAreTyped checks that each error of this package is listed as a verdict or as a
// failure, and that its type agrees.
func TestVerdictsAreTyped(t *testing.T) {
	catalogtest.Verdicts(t, map[string]error{"ErrDeleting": ErrDeleting, "ErrStale": ErrStale, "ErrNeeded": ErrNeeded, "ErrUnprotected": ErrUnprotected})
}
