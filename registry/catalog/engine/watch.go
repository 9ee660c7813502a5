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
	// pingEvery is how long a watcher's connection may be silent until it is
	// asked whether it is there, and pingLimit how long the answer may take.
	// Together they bound for how long something stale is trusted.
	pingEvery, pingLimit = time.Second, 3 * time.Second
	// maxPayload is how many bytes a notification may have: PostgreSQL takes
	// less than 8000.
	maxPayload = 7900
	// maxTold is how many changes of a batch are told one by one. Of more it is
	// cheaper to forget everything.
	maxTold = 4096
)

// ChangeKind says what changed.
type ChangeKind uint8

// Kinds of changes.
const (
	// ChangeTag: a tag of a repository points elsewhere, or is gone. Ref is the tag.
	ChangeTag ChangeKind = iota + 1
	// ChangeManifest: a manifest of a repository is gone, or was repaired. Ref
	// is its digest.
	ChangeManifest
	// ChangeBlob: a repository does not show a blob any more, or the blob was
	// repaired. Ref is its digest.
	ChangeBlob
)

// Change is something that another process has changed, so that what was read
// of it before is out of date.
type Change struct {
	Kind      ChangeKind
	Repo, Ref string
}

// Watcher is told what other processes change; see [DB.Watch]. Its methods
// are called one at a time, and what comes next waits for them.
type Watcher interface {
	// Changed tells what has changed.
	Changed(list []Change)
	// Lost tells that changes may be missed from now on. What was read before
	// must not be trusted.
	Lost()
	// Again tells that no change is missed from now on. Whatever was read before
	// must be forgotten when it returns.
	Again()
}

// notice is what a notification says, as JSON.
type notice struct {
	// Writer is whose batch it was.
	Writer string `json:"w"`
	// Changes of the batch, or some of them.
	Changes []Change `json:"c,omitempty"`
	// All says that there were too many to tell.
	All bool `json:"a,omitempty"`
	// Sync is the name of a call of Sync.
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

// encodeChanges makes notifications of the changes of a batch.
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
	const frame = 64 // what surrounds the changes, with the writer's name
	for _, c := range changes {
		b, err := c.MarshalJSON()
		if err != nil || len(b)+frame > maxPayload {
			return all // no name that is allowed is as long
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
	if err != nil { // there is nothing in it that cannot be written
		panic(err)
	}
	return string(b)
}

// watch listens until ctx ends, on one connection after the other.
func (p *postgres) watch(ctx context.Context, w Watcher) error {
	w.Lost()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		begin := time.Now()
		// Why it broke, the writer and the readers report, too.
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

// listen connects and tells the watcher what comes, until the connection breaks.
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
		_ = conn.Close(closing) // it is given up, however that ends
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

// nextNotice waits for a notification. Without one, but with a connection that
// works, it returns nil.
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

// deliver tells the watcher of a notification. One that cannot be read says that
// something has changed.
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

// sync sends a notification to itself: they come in the order of the commits.
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
		case <-again.C: // it may have come while nobody listened
		}
	}
}
