package s3store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/minio/minio-go/v7"

	"example.org/slipway/registry/objstore"
)

// Codes of S3's error answers that minio has no name for.
const (
	codeExpiredToken     = "ExpiredToken"
	codeInvalidToken     = "InvalidToken"
	codeInvalidAccessKey = "InvalidAccessKeyId"
	codeBadSignature     = "SignatureDoesNotMatch"
	codeClockSkew        = "RequestTimeTooSkewed"
	codeRedirect         = "PermanentRedirect"
	codeBadAuthHeader    = "AuthorizationHeaderMalformed"
	codeQuota            = "QuotaExceeded"
	codeStorageFull      = "XMinioStorageFull"
	codeBadRange         = "InvalidRange"
	codeNoSuchUpload     = "NoSuchUpload"
	codeNoSuchUser       = "XAdminUserNotFound" // versitygw
	codeConflict         = "ConditionalRequestConflict"
	codeOperationAborted = "OperationAborted"
	codeInternal         = "InternalError"
	codeSlowDown         = "SlowDown"
	codeUnavailable      = "ServiceUnavailable"
	codeTimeout          = "RequestTimeout"
)

// call runs one operation against the server and translates its error into one of the
// contract. It runs f again if the server refused the credentials and there are new ones,
// or if the server had closed the connection before the request came. So f must be able
// to run twice.
func (s *Store) call(ctx context.Context, what string, f func(context.Context) error) error {
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		used, err := s.keys.get(ctx)
		if err != nil {
			return &objstore.BusyError{Err: fmt.Errorf("%s: renew the credentials: %w", what, err)}
		}
		xctx, x := withExchange(ctx)
		err = f(xctx)
		if err == nil {
			s.seen.Store(s.clock())
			return nil
		}
		if try == 0 && (x.stale() || refusesKeys(minio.ToErrorResponse(err)) && s.keys.renewed(ctx, used)) {
			continue
		}
		if err = s.translate(ctx, x, err); errors.Is(err, objstore.ErrNotExist) || errors.Is(err, objstore.ErrExist) {
			s.seen.Store(s.clock())
		}
		return fmt.Errorf("%s: %w", what, err)
	}
}

// refusesKeys reports whether other credentials may be accepted.
func refusesKeys(r minio.ErrorResponse) bool {
	switch r.Code {
	case codeExpiredToken, codeInvalidToken, codeInvalidAccessKey, codeBadSignature, codeNoSuchUser:
		return true
	}
	// HEAD has no body that says why.
	return r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized
}

// translate returns the contract's error for one of minio's.
func (s *Store) translate(ctx context.Context, x *exchange, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return fmt.Errorf("%w (%v)", ctxErr, err)
	}
	var refused *conditionError
	if objstore.IsBusy(err) || errors.As(err, &refused) {
		return err // the operation itself has made this error
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	r := minio.ToErrorResponse(err)
	switch {
	case x.err != nil:
		return s.connectionError(x.err)
	case r.StatusCode == 0 && r.Code == "" && x.answered:
		// The answer broke off, or does not come from S3.
		return &objstore.BusyError{RetryAfter: x.retryAfter, Err: fmt.Errorf("answer of %s: %w", s.where, err)}
	case r.StatusCode == 0 && r.Code == "":
		return err
	}
	switch r.Code {
	case minio.NoSuchKey, codeNoSuchUpload, "NotFound":
		return objstore.ErrNotExist
	case minio.NoSuchBucket:
		return s.noBucket()
	case minio.PreconditionFailed:
		return objstore.ErrExist
	case codeQuota, codeStorageFull:
		return fmt.Errorf("%w: %s: %s", objstore.ErrNoSpace, s.where, text(r))
	// S3 sends some of these inside a 200 if the answer takes long.
	case codeConflict, codeOperationAborted, codeExpiredToken, codeInternal, codeSlowDown, codeUnavailable, codeTimeout:
		return &objstore.BusyError{RetryAfter: x.retryAfter, Err: fmt.Errorf("%s: %s", s.where, text(r))}
	case codeInvalidAccessKey, codeBadSignature, codeInvalidToken, codeNoSuchUser:
		return fmt.Errorf("%s refuses the credentials (%s): check the access key and the secret key", s.where, text(r))
	case codeClockSkew:
		return fmt.Errorf("%s refuses the request because the clocks differ (%s): set this machine's clock", s.where, text(r))
	case codeRedirect, codeBadAuthHeader, minio.InvalidRegion:
		return fmt.Errorf("%s is not in region %q (%s): set the bucket's region or its endpoint", s.where, s.region, text(r))
	}
	return s.statusError(x, r)
}

// statusError translates an error of which only the HTTP status is known.
func (s *Store) statusError(x *exchange, r minio.ErrorResponse) error {
	switch code := r.StatusCode; {
	case code == http.StatusInsufficientStorage:
		return fmt.Errorf("%w: %s: %s", objstore.ErrNoSpace, s.where, text(r))
	// Another request caused the conflict at the same moment.
	case code == http.StatusConflict, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout,
		code >= 500 && code != http.StatusNotImplemented:
		return &objstore.BusyError{RetryAfter: x.retryAfter, Err: fmt.Errorf("%s: %s", s.where, text(r))}
	case code == http.StatusForbidden, code == http.StatusUnauthorized:
		return fmt.Errorf("%s denies this (%s): the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:ListBucket and s3:AbortMultipartUpload there; for a bucket that is read-only set the registry read-only too", s.where, text(r))
	}
	return fmt.Errorf("%s: %s", s.where, text(r))
}

// noBucket names what is missing.
func (s *Store) noBucket() error {
	return fmt.Errorf("%s does not exist: create the bucket, or correct its name or the endpoint", s.where)
}

// text returns what the server said, bounded, because it goes into logs.
func text(r minio.ErrorResponse) string {
	const most = 300
	msg := r.Error()
	if len(msg) > most {
		msg = msg[:most] + "..."
	}
	if r.StatusCode == 0 {
		return fmt.Sprintf("%s: %q", r.Code, msg)
	}
	return fmt.Sprintf("%d %s: %q", r.StatusCode, r.Code, msg)
}

// connectionError translates the error of a server that was not reached or went away.
func (s *Store) connectionError(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown), errors.As(err, &name), errors.As(err, &invalid):
		return fmt.Errorf("%s: %w: give its certificate authority", s.where, err)
	case errors.As(err, &record):
		return fmt.Errorf("%s: %w: the endpoint does not speak TLS, or not plain HTTP", s.where, err)
	}
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		err = fmt.Errorf("%w: check the endpoint", err)
	}
	return &objstore.BusyError{Err: fmt.Errorf("%s: %w", s.where, err)}
}
