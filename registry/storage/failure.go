package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/objstore"
)

// Unavailable turns a temporary failure of the store or catalogue into the error for the
// client. It returns other errors unchanged.
func Unavailable(err error) error {
	var known *oci.Error
	if !errors.As(err, &known) && (objstore.IsBusy(err) || errors.Is(err, engine.ErrUnavailable) || impairment(err) != "") {
		return ClientError("use the storage", err)
	}
	return err
}

// ClientError turns a failure of the store or catalogue into the error for the client.
func ClientError(doing string, err error) error {
	var known *oci.Error
	var busy *objstore.BusyError
	var away *StoreError
	switch {
	case errors.As(err, &away):
		return storeAway(away)
	case errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled):
	case impairment(err) != "":
		return unavailable(impairment(err), impairedRetry, doing, err)
	case errors.As(err, &busy):
		return unavailable("the registry's storage is busy, or cannot be reached", max(busy.RetryAfter, defaultRetry), doing, err)
	case errors.Is(err, objstore.ErrNoSpace) || errors.Is(err, engine.ErrFull) || IsFull(err):
		return &oci.Error{Code: oci.CodeUnknown, Status: http.StatusInsufficientStorage,
			Message: "the registry's storage is full; nothing was stored by this request", Err: fmt.Errorf("%s: %w", doing, err)}
	case errors.Is(err, objstore.ErrTaken):
		return &oci.Error{Code: oci.CodeUnknown, Status: http.StatusInternalServerError,
			Message: "something other than a blob lies in the storage where this one belongs; slipway fsck --repair moves files away, and the log names it", Err: fmt.Errorf("%s: %w", doing, err)}
	case errors.Is(err, engine.ErrUnavailable):
		return unavailable("the registry's database cannot be reached", defaultRetry, doing, err)
	case errors.Is(err, catalog.ErrDeleting):
		return unavailable("the same content is being deleted", defaultRetry, doing, err)
	case errors.Is(err, catalog.ErrBusy):
		return &oci.Error{Code: oci.CodeBlobUploadInvalid, Status: http.StatusConflict,
			Message: "another request has taken this upload; ask for its status and continue from there", Err: fmt.Errorf("%s: %w", doing, err)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Room returns an error for new content while the catalogue's disk is full.
func (s *Storage) Room() error {
	if err := s.cat.DB.Room(); err != nil {
		return ClientError("begin a change", err)
	}
	return nil
}

// impairment names what keeps the machine from serving although nothing is damaged. It
// returns "" for any other error.
func impairment(err error) string {
	switch {
	case errors.Is(err, syscall.EROFS):
		return "the registry's disk is mounted read-only"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "the registry has no file descriptors left"
	}
	return ""
}

// impairedRetry is when a client should try again if an operator has to repair something
// first.
const impairedRetry = 30 * time.Second

// defaultRetry is when a client should try again if nothing better is known.
const defaultRetry = 5 * time.Second

func unavailable(what string, after time.Duration, doing string, err error) error {
	return &oci.Error{Code: oci.CodeUnavailable, RetryAfter: after, Message: what + "; try again in a moment", Err: fmt.Errorf("%s: %w", doing, err)}
}

// IsFull reports whether an error says that the disk under the catalogue is full. The
// driver returns SQLite's message (SQLITE_FULL) or the system's error.
func IsFull(err error) bool {
	var full interface{ Code() int }
	const sqliteFull = 13
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || (errors.As(err, &full) && full.Code()&0xff == sqliteFull)
}
