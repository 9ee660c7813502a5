package engine

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// pingEvery is how long a watcher's connection may be silent before it is pinged.
	// pingLimit is how long the answer may take. Their sum bounds how long stale data is
	// trusted.
	pingEvery, pingLimit = time.Second, 3 * time.Second
	// maxPayload is the maximum size of a notification in bytes. PostgreSQL allows less
	// than 8000.
	maxPayload = 7900
	// maxTold is the maximum number of changes of a batch that are listed one by one. If
	// there are more, it is cheaper to forget everything.
	maxTold = 4096
)

// ChangeKind says what changed.
type ChangeKind uint8

// Kinds of changes.
const (
	// ChangeTag says that a tag of a repository points elsewhere or is gone. Ref is the
	// tag.
	ChangeTag ChangeKind = iota + 1
	// ChangeManifest says that a manifest of a repository is gone or was repaired. Ref is
	// its digest.
	ChangeManifest
	// ChangeBlob says that a repository does not show a blob any more, or that the blob
	// was repaired. Ref is its digest.
	ChangeBlob
)

// Change is something that another process has changed. What was read of it before is out
// of date.
type Change struct {
	Kind      ChangeKind
	Repo, Ref string
}

// Watcher receives the changes of other processes; see [DB.Watch]. Its methods are called
// one at a time, and the next call waits for the previous one.
type Watcher interface {
	// Changed tells what has changed.
	Changed(list []Change)
	// Lost says that changes may be missed from now on. What was read before must not be
	// trusted.
	Lost()
	// Again says that no change is missed from now on. When it returns, everything that
	// was read before must be forgotten.
	Again()
}

// notice is the content of a notification, as JSON.
type notice struct {
	// Writer is the name of the process that committed the batch.
	Writer string `json:"w"`
	// Changes holds changes of the batch, perhaps not all.
	Changes []Change `json:"c,omitempty"`
	// All says that there were too many changes to list.
	All bool `json:"a,omitempty"`
	// Sync is the name of a call of sync.
	Sync string `json:"s,omitempty"`
}

// MarshalJSON writes a change in a few bytes.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{c.Kind, c.Repo, c.Ref})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Change) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&c.Kind, &c.Repo, &c.Ref})
}

// encodeChanges returns notifications of the changes of a batch.
func encodeChanges(writer string, changes []Change) []string {
	if len(changes) == 0 {
		return nil
	}
	all := []string{encodeNotice(notice{Writer: writer, All: true})}
	if len(changes) > maxTold {
		return all
	}
	var out []string
	n := notice{Writer: writer}
	size := 0
	flush := func() {
		if len(n.Changes) > 0 {
			out = append(out, encodeNotice(n))
		}
		n.Changes, size = nil, 0
	}
	const frame = 64 // the bytes around the changes, with the writer's name
	for _, c := range changes {
		b, err := c.MarshalJSON()
		if err != nil || len(b)+frame > maxPayload {
			return all // no valid name is that long
		}
		if size+len(b)+1+frame > maxPayload {
			flush()
		}
		n.Changes = append(n.Changes, c)
		size += len(b) + 1
	}
	flush()
	return out
}

func encodeNotice(n notice) string {
	b, err := json.Marshal(n)
	if err != nil { // a notice has nothing that cannot be encoded
		panic(err)
	}
	return string(b)
}

// watch listens until ctx ends, and connects again whenever the connection breaks.
func (p *postgres) watch(ctx context.Context, w Watcher) error {
	w.Lost()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		begin := time.Now()
		// The writer and the readers report why the connection broke, too.
		_ = p.listen(ctx, w)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(begin) > 10*time.Second {
			wait = 50 * time.Millisecond
		}
		pause(ctx, wait)
	}
}

// listen connects and reports notifications to the watcher until the connection breaks.
func (p *postgres) listen(ctx context.Context, w Watcher) error {
	connecting, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, p.config)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // the connection is given up, whatever the result
	}()
	if _, err := conn.Exec(connecting, `LISTEN `+pgx.Identifier{p.channel}.Sanitize()); err != nil {
		return err
	}
	w.Again()
	defer w.Lost()
	for {
		n, err := p.nextNotice(ctx, conn)
		if err != nil {
			return err
		}
		if n != nil {
			p.deliver(w, n.Payload)
		}
		if p.doubted.CompareAndSwap(true, false) {
			w.Lost()
			w.Again()
		}
	}
}

// nextNotice waits for a notification. It returns nil if there was none but the
// connection works.
func (p *postgres) nextNotice(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	waiting, cancel := context.WithTimeout(ctx, pingEvery)
	n, err := conn.WaitForNotification(waiting)
	cancel()
	if err == nil {
		return n, nil
	}
	if ctx.Err() != nil || conn.IsClosed() || !pgconn.Timeout(err) {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	return nil, conn.Ping(asking)
}

// deliver reports a notification to the watcher. It treats a notification that cannot be
// read like one with All set.
func (p *postgres) deliver(w Watcher, payload string) {
	var n notice
	if err := json.Unmarshal([]byte(payload), &n); err != nil {
		n = notice{All: true}
	}
	switch {
	case n.Sync != "":
		p.mu.Lock()
		if ch := p.syncs[n.Sync]; ch != nil {
			close(ch)
			delete(p.syncs, n.Sync)
		}
		p.mu.Unlock()
	case n.Writer == *p.id.Load():
	case n.All:
		w.Lost()
		w.Again()
	case len(n.Changes) > 0:
		w.Changed(n.Changes)
	}
}

// sync sends a notification to this process and waits for it. Notifications arrive in the
// order of the commits.
func (p *postgres) sync(ctx context.Context) error {
	name, ch := rand.Text(), make(chan struct{})
	p.mu.Lock()
	p.syncs[name] = ch
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.syncs, name)
		p.mu.Unlock()
	}()
	for {
		var none string
		err := p.db.Row(ctx, `SELECT pg_notify(?, ?)::text`, []any{p.channel, encodeNotice(notice{Writer: *p.id.Load(), Sync: name})}, &none)
		if err != nil {
			return fmt.Errorf("wait for changes of others: %w", err)
		}
		again := time.NewTimer(pingEvery)
		select {
		case <-ch:
			again.Stop()
			return nil
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		case <-again.C: // the notification may have come while nobody listened
		}
	}
}
