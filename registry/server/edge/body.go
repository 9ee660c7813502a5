package edge

import (
	"errors"

	"example.org/slipway/oci"
)

// BrokeOff returns an error that explains why a body could not be read.
func BrokeOff(err error) error {
	var e *oci.Error
	if errors.As(err, &e) {
		return err
	}
	return oci.Errorf(oci.CodeSizeInvalid, "the body broke off: %w", err)
}
