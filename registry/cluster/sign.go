package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Headers between replicas.
const (
	// headerTicket carries a request's signature: v1 TIME SENDER COUNT MAC.
	headerTicket = "Slipway-Peer"
	// headerProof carries an answer's signature, a MAC in hex. It proves that the sender
	// of the answer knows the secret. So somebody who has taken over a replica's address
	// cannot answer for the replica.
	headerProof = "Slipway-Peer-Proof"
)

// errTicket says that a request is not signed correctly. The sender does not learn what
// is wrong.
var errTicket = errors.New("the request is not signed by a peer")

// macKey is the key that signs requests and answers between replicas. It is derived from
// the secret, so that the same key is never used for anything else by accident.
type macKey [sha256.Size]byte

func newMACKey(secret []byte) (k macKey) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("slipway peers v1"))
	m.Sum(k[:0])
	return k
}

// String keeps the key out of logs.
func (macKey) String() string { return "[secret]" }

// sum returns the MAC of lines. No line may contain a line feed.
func (k *macKey) sum(lines ...string) []byte {
	m := hmac.New(sha256.New, k[:])
	m.Write([]byte(strings.Join(lines, "\n")))
	return m.Sum(nil)
}

// ticket is the signed part of a request's identity. A pair of sender and count never
// occurs twice, so the two are the nonce.
type ticket struct {
	// at is the sender's time, in seconds since 1970.
	at int64
	// sender is the incarnation that sends the request, and count is the number of the
	// request in that incarnation.
	sender string
	count  uint64
	mac    []byte
}

// sign makes the ticket of a request to target, which is an incarnation. Another replica
// does not accept the ticket, nor does the same replica after a restart.
func (k *macKey) sign(method, path, ranges, target string, t ticket) string {
	return t.text() + " " + hex.EncodeToString(k.request(method, path, ranges, target, t))
}

func (t *ticket) text() string {
	return "v1 " + strconv.FormatInt(t.at, 10) + " " + t.sender + " " + strconv.FormatUint(t.count, 10)
}

func (k *macKey) request(method, path, ranges, target string, t ticket) []byte {
	return k.sum("request", method, path, ranges, target, t.text())
}

// parseTicket parses a ticket. It does not check whether the ticket is genuine.
func parseTicket(s string) (t ticket, err error) {
	f := strings.Split(s, " ")
	if len(f) != 5 || f[0] != "v1" || !validID(f[2]) || len(f[4]) != 2*sha256.Size {
		return t, errTicket
	}
	at, err1 := strconv.ParseInt(f[1], 10, 64)
	count, err2 := strconv.ParseUint(f[3], 10, 64)
	mac, err3 := hex.DecodeString(f[4])
	if err1 != nil || err2 != nil || err3 != nil {
		return t, errTicket
	}
	t = ticket{at, f[2], count, mac}
	if t.text()+" "+hex.EncodeToString(mac) != s { // there is only one valid form
		return t, errTicket
	}
	return t, nil
}

// verify checks that a request comes from a peer, was sent now, arrives for the first
// time, and is for this incarnation.
func (c *Cluster) verify(method, path, ranges, text string) (ticket, error) {
	t, err := parseTicket(text)
	if err != nil {
		return t, err
	}
	if !hmac.Equal(t.mac, c.key.request(method, path, ranges, c.self, t)) {
		return t, errTicket
	}
	now := c.opts.Clock()
	if d := now.Unix() - t.at; d > int64(c.opts.Skew/time.Second) || -d > int64(c.opts.Skew/time.Second) {
		return t, fmt.Errorf("%w: the clocks differ by %d s", errTicket, d)
	}
	if !c.windows.first(t.sender, t.count, now) {
		return t, fmt.Errorf("%w: it came twice", errTicket)
	}
	return t, nil
}

// proof signs an answer to a request.
func (k *macKey) proof(t ticket, status int, length, ranges, modified string) []byte {
	return k.sum("answer", t.text(), strconv.Itoa(status), length, ranges, modified)
}

// windowBits is how far the requests of a sender may overtake each other.
const windowBits = 4096

// windows remember which requests have come. For each sender they have the highest count,
// and which of the windowBits counts before it have come. Only genuine requests are
// entered, so there are as many senders as incarnations. Each takes about 600 bytes.
type windows struct {
	keep time.Duration

	mu      sync.Mutex
	senders map[string]*window
	swept   time.Time
}

type window struct {
	highest uint64
	seen    [windowBits / 64]uint64 // a ring: bit count % windowBits
	last    time.Time
}

func (ws *windows) init(keep time.Duration) { ws.keep, ws.senders = keep, map[string]*window{} }

// first reports whether a count of a sender comes for the first time. It returns false
// for a count that is too old to decide.
func (ws *windows) first(sender string, count uint64, now time.Time) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	// A ticket is rejected for its time before its sender is forgotten.
	if now.Sub(ws.swept) > ws.keep {
		ws.swept = now
		for id, w := range ws.senders {
			if now.Sub(w.last) > ws.keep {
				delete(ws.senders, id)
			}
		}
	}
	w := ws.senders[sender]
	if w == nil {
		w = &window{highest: count}
		ws.senders[sender] = w
	}
	w.last = now
	switch {
	case count > w.highest:
		if count-w.highest >= windowBits {
			w.seen = [windowBits / 64]uint64{}
		} else {
			for i := w.highest + 1; i < count; i++ {
				w.set(i, false)
			}
		}
		w.highest = count
		w.set(count, true)
		return true
	case w.highest-count >= windowBits || w.has(count):
		return false
	}
	w.set(count, true)
	return true
}

func (w *window) has(count uint64) bool {
	return w.seen[count%windowBits/64]&(1<<(count%64)) != 0
}

func (w *window) set(count uint64, on bool) {
	bit := uint64(1) << (count % 64)
	if on {
		w.seen[count%windowBits/64] |= bit
	} else {
		w.seen[count%windowBits/64] &^= bit
	}
}
