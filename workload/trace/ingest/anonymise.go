package ingest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
	"time"

	"example.org/slipway/workload/trace"
)

// AnonymiserOptions say what else an [Anonymiser] changes. With the zero value it changes only
// names.
type AnonymiserOptions struct {
	// RoundSizes is the number of bytes to whose multiples sizes are rounded up; 0 leaves them
	// unchanged. For public content, an exact size is about as good as a name.
	RoundSizes int64
	// Shift is added to all times.
	Shift time.Duration
	// Agents also replaces user agents by pseudonyms. Otherwise they stay as they are: they
	// identify versions, not persons, but a rare one may identify a person.
	Agents bool
}

// Anonymiser replaces the names in records by pseudonyms: hosts, clients, ids, digests,
// and every segment of a path except the protocol's own words. A pseudonym is the first 8
// bytes, in hexadecimal, of the HMAC-SHA-256 of the name under a key. The same name has
// the same pseudonym everywhere, so that an upload has the same digest as the blob which
// is fetched later. Without the key nobody can test names. Users, referers and queries
// are left out. Its methods must not run concurrently.
type Anonymiser struct {
	o     AnonymiserOptions
	mac   hash.Hash
	known map[string]string
	bytes int
}

// MinKey is the least number of bytes of a key.
const MinKey = 16

// pseudonymBytes is how many bytes of the code are kept. With 64 bits, ten million names have a
// chance of 1 in 370,000 that any two get the same pseudonym.
const pseudonymBytes = 8

// maxKnown bounds the names whose pseudonyms are remembered, in bytes.
const maxKnown = 64 << 20

// NewAnonymiser returns an anonymiser with a key. For pseudonyms that nobody can undo, make the key
// at random and forget it.
func NewAnonymiser(key []byte, o *AnonymiserOptions) (*Anonymiser, error) {
	if len(key) < MinKey {
		return nil, errors.New("anonymise: the key is too short")
	}
	a := &Anonymiser{mac: hmac.New(sha256.New, key), known: map[string]string{}}
	if o != nil {
		a.o = *o
	}
	if a.o.RoundSizes < 0 {
		return nil, errors.New("anonymise: sizes cannot be rounded to negative multiples")
	}
	return a, nil
}

// Pseudonym returns the pseudonym of a name. For "" it is "".
func (a *Anonymiser) Pseudonym(name string) string {
	if name == "" {
		return ""
	}
	if p, ok := a.known[name]; ok {
		return p
	}
	a.mac.Reset()
	a.mac.Write([]byte(name))
	p := hex.EncodeToString(a.mac.Sum(nil)[:pseudonymBytes])
	if a.bytes += len(name) + len(p) + 64; a.bytes > maxKnown {
		clear(a.known)
		a.bytes = 0
	}
	a.known[strings.Clone(name)] = p
	return p
}

// path replaces the segments of a path by pseudonyms.
func (a *Anonymiser) path(path string) string {
	if path == "" {
		return ""
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i] = a.Pseudonym(s)
	}
	return strings.Join(segments, "/")
}

// Anonymise changes a record.
func (a *Anonymiser) Anonymise(r *trace.Record) {
	t := trace.ParseURI(r.URI)
	if r.Digest == "" && t.Kind == trace.Manifest && strings.Contains(t.Ref, ":") {
		r.Digest = t.Ref // nobody could distinguish it from a tag any more
	}
	r.Host, r.RemoteAddr, r.ID, r.Digest = a.Pseudonym(r.Host), a.Pseudonym(r.RemoteAddr), a.Pseudonym(r.ID), a.Pseudonym(r.Digest)
	r.User, r.Referer = "", ""
	if t.Kind == trace.Other {
		uri, _, _ := strings.Cut(r.URI, "?")
		r.URI = a.path(strings.TrimPrefix(uri, "/"))
	} else {
		t.Repo, t.Ref = a.path(t.Repo), a.path(t.Ref)
		r.URI = t.URI()
	}
	if a.o.Agents {
		r.UserAgent = a.Pseudonym(r.UserAgent)
	}
	if a.o.Shift != 0 {
		r.Time = r.Time.Add(a.o.Shift)
	}
	r.Written, r.Received = a.round(r.Written), a.round(r.Received)
}

// round rounds a size up.
func (a *Anonymiser) round(size int64) int64 {
	m := a.o.RoundSizes
	if m <= 0 || size <= 0 || size%m == 0 {
		return size
	}
	if up := size - size%m + m; up > 0 {
		return up
	}
	return size
}
