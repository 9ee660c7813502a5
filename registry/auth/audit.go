package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
)

// maxAuditField bounds each field of an audit line, in bytes.
const maxAuditField = 512

// Event is a security-relevant event. It never contains credentials.
type Event struct {
	// Time is when the event happened. If it is zero, Record sets it to the present time.
	Time time.Time `json:"time"`
	// Event is what happened. login, token and denied come from this package. The server
	// adds push, delete, tag and admin.
	Event string `json:"event"`
	// Outcome is the outcome of the event: issued, failure, denied or success.
	Outcome string `json:"outcome"`
	// Subject is who did it. It is empty for anonymous and unknown users.
	Subject string `json:"subject,omitempty"`
	// Method is how the subject was authenticated.
	Method string `json:"method,omitempty"`
	// Addr is the client's address.
	Addr string `json:"addr,omitempty"`
	// Action is what was requested: actions, scopes or an admin command.
	Action string `json:"action,omitempty"`
	// Repo is the repository.
	Repo string `json:"repo,omitempty"`
	// Reference is the tag or digest, or the id of the token that was issued.
	Reference string `json:"reference,omitempty"`
	// Reason says why the event failed.
	Reason string `json:"reason,omitempty"`
	// RequestID is the id of the request, which is also in the access log.
	RequestID string `json:"request_id,omitempty"`
}

// eventOf returns an Event with the fields that come from the request.
func eventOf(r *http.Request, event string) Event {
	e := Event{Event: event, Addr: r.RemoteAddr}
	if actor := oci.ActorFrom(r.Context()); actor != nil {
		e.RequestID = actor.RequestID
		if actor.Addr != "" {
			e.Addr = actor.Addr
		}
	}
	return e
}

// AuditLog writes events to a file, one JSON object per line. A nil AuditLog drops them.
// It is safe for concurrent use.
type AuditLog struct {
	path  string
	log   *slog.Logger
	clock func() time.Time

	mu      sync.Mutex
	file    *os.File // nil after Close
	failing bool     // the last write failed, and that was logged
}

// OpenAuditLog opens path for appending. It creates the file with mode 0600 if there is
// none. It uses only Logger and Clock of the options. The caller closes the log.
func OpenAuditLog(path string, opts *Options) (*AuditLog, error) {
	o := opts.orDefault()
	f, err := openAudit(path)
	if err != nil {
		return nil, err
	}
	return &AuditLog{path: path, log: o.Logger, clock: o.Clock, file: f}, nil
}

func openAudit(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return f, nil
}

// Record writes an event as one line in one write. When Record returns, the operating
// system has the line, but the file is not synced. If writing fails, that is logged once
// until writing works again, and the registry continues to work.
func (l *AuditLog) Record(e Event) {
	if l == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = l.clock()
	}
	e.Time = e.Time.UTC()
	for _, s := range []*string{&e.Event, &e.Outcome, &e.Subject, &e.Method, &e.Addr, &e.Action, &e.Repo, &e.Reference, &e.Reason, &e.RequestID} {
		if len(*s) > maxAuditField {
			*s = strings.ToValidUTF8((*s)[:maxAuditField], "") + "..."
		}
	}
	line, err := json.Marshal(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		if l.file == nil {
			err = os.ErrClosed
		} else {
			_, err = l.file.Write(append(line, '\n'))
		}
	}
	if err != nil && !l.failing {
		l.log.Error("audit event not written", "path", l.path, "event", e.Event, "error", err)
	}
	l.failing = err != nil
}

// Reopen opens the path anew, after a log rotation has renamed the file. If that fails,
// the old file stays in use.
func (l *AuditLog) Reopen() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return fmt.Errorf("reopen audit log: %w", os.ErrClosed)
	}
	f, err := openAudit(l.path)
	if err != nil {
		return err
	}
	old := l.file
	l.file = f
	if err := old.Close(); err != nil {
		return fmt.Errorf("close old audit log: %w", err)
	}
	return nil
}

// Close syncs and closes the file. Events that are recorded later are lost, and the loss
// is logged. Close is idempotent.
func (l *AuditLog) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}
