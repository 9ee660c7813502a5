package catalog

import (
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// TestVerdictsAreTyped checks that each error of this package is listed as a verdict or as a
// failure, and that its type agrees.
func TestVerdictsAreTyped(t *testing.T) {
	catalogtest.Verdicts(t, map[string]error{
		"ErrNotFound": ErrNotFound, "ErrNoRepository": ErrNoRepository, "ErrReferenced": ErrReferenced, "ErrNotStored": ErrNotStored,
		"ErrBusy":     ErrBusy,
		"ErrDeleting": ErrDeleting, "ErrChanged": ErrChanged, "ErrInUse": ErrInUse,
		"errDryRun": errDryRun, "MissingError": &MissingError{}, "ImmutableError": &ImmutableError{}, "MediaTypeError": &MediaTypeError{},
		"SizeError": &SizeError{},
	})
}
