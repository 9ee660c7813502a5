package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"example.org/slipway/oci"
)

// kindOf returns the kind under which an error is counted. answered reports whether an
// answer had begun.
func kindOf(err error, answered bool) string {
	var f *Fault
	var answer *oci.Error
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &f):
		return f.Kind
	case errors.As(err, &answer) && answer.Code == oci.CodeDigestInvalid:
		return wrongContent
	case errors.As(err, &answer) && answer.HTTPStatus() > 0:
		return fmt.Sprintf("status %d", answer.HTTPStatus())
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return timedOut
	case errors.As(err, &op) && op.Op == "dial":
		return notConnected
	case answered, errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.As(err, &op):
		return broken
	}
	return otherFault
}

// example returns the text of an error without its kind.
func example(err error) string {
	var f *Fault
	if errors.As(err, &f) {
		return f.Err.Error()
	}
	return err.Error()
}
