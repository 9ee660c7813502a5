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

// Event is one security-relevant event. Credentials are never part of it.
type Event struct {
	// Time of the event; zero: when it is recorded.
	Time time.Time `json:"time"`
	// Event is what happened: login, token and denied come from this package;
	// the server adds push, delete, tag and admin.
	Event string `json:"event"`
	// Outcome is how it ended: issued, failure, denied, success.
	Outcome string `json:"outcome"`
	// Subject is who did it, empty for anonymous and unknown users.
	Subject string `json:"subject,omitempty"`
	// Method is how the subject was authenticated.
	Method string `json:"method,omitempty"`
	// Addr is the client's address.
	Addr string `json:"addr,omitempty"`
	// Action is what was asked for: actions, scopes or an admin command.
	Action string `json:"action,omitempty"`
	// Repo is the repository.
	Repo string `json:"repo,omitempty"`
	// Reference is the tag or digest, or the id of an issued token.
	Reference string `json:"reference,omitempty"`
	// Reason tells why it failed.
	Reason string `json:"reason,omitempty"`
	// RequestID is the id that the access log has, too.
	RequestID string `json:"request_id,omitempty"`
}

// eventOf begins an event about a request.
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

// AuditLog writes events to a file, one JSON object a line. A nil AuditLog
// drops them. Safe for concurrent use.
type AuditLog struct {
	path  string
	log   *slog.Logger
	clock func() time.Time

	mu      sync.Mutex
	file    *os.File // nil after Close
	failing bool     // the last write failed, and that was logged
}

// OpenAuditLog opens path for appending and creates it with mode 0600. Of the
// options it uses Logger and Clock. The caller closes the log.
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

// Record writes an event as one line in one write. The line is with the
// operating system when Record returns; it is not synced. A failure to write is
// logged once until writing works again, and does not stop the registry.
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

// Reopen opens the path anew, after the file was renamed by a log rotation.
// When that fails the old file stays in use.
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

// Close syncs and closes the file. Events recorded later are lost and logged
// as such. It is idempotent.
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
