package replay

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"time"

	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/replay/send"
)

// protocolVersion changes whenever frames or tasks change. Both ends must have the same
// version.
const protocolVersion = 2

// hello is what a worker says first.
type hello struct {
	Version int    `json:"version"`
	Nonce   []byte `json:"nonce"`
}

// proof is what a coordinator answers: a MAC over both nonces shows that it knows the
// secret.
type proof struct {
	Version int    `json:"version"`
	Nonce   []byte `json:"nonce"`
	MAC     []byte `json:"mac"`
}

// welcome is the proof of the worker.
type welcome struct {
	MAC []byte `json:"mac"`
}

// config is what a worker has to know.
type config struct {
	Worker   uint8         `json:"worker"`
	Targets  []send.Target `json:"targets"`
	Maker    content.Maker `json:"maker"`
	Timeout  time.Duration `json:"timeout"`
	Most     int           `json:"most"`
	Patience time.Duration `json:"patience"`
	Agent    string        `json:"agent"`
	Clients  bool          `json:"clients"`
}

// phase begins a warm-up round or the test.
type phase struct {
	// Start is time zero of the tasks in the worker's own clock, in ns since 1970.
	Start int64 `json:"start"`
	// Closed is how many tasks run at once in a closed loop; 0 for an open loop.
	Closed int `json:"closed"`
}

const nonceSize = 32

func nonce() []byte {
	b := make([]byte, nonceSize)
	rand.Read(b) // never fails
	return b
}

// mac proves the knowledge of a secret to the side that chose the first nonce. Each side
// has its own label, so that a proof cannot be sent back as the other side's.
func mac(secret, label string, theirs, ours []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, part := range [][]byte{[]byte("slipway replay 1 " + label), theirs, ours} {
		sum := sha256.Sum256(part)
		h.Write(sum[:])
	}
	return h.Sum(nil)
}

var errSecret = errors.New("the worker and the coordinator have different secrets")

// greet is the worker's half of the handshake.
func greet(l *link, secret string) error {
	mine := nonce()
	if err := l.sendJSON(frameHello, hello{protocolVersion, mine}); err != nil {
		return err
	}
	var p proof
	if err := l.expect(frameProof, handshakeTimeout, &p); err != nil {
		return err
	}
	switch {
	case p.Version != protocolVersion:
		return errors.Join(errVersion, l.send(frameRefuse, []byte(errVersion.Error())))
	case len(p.Nonce) != nonceSize || !hmac.Equal(p.MAC, mac(secret, "coordinator", mine, p.Nonce)):
		return errors.Join(errSecret, l.send(frameRefuse, []byte(errSecret.Error())))
	}
	l.most = maxFrame
	return l.sendJSON(frameWelcome, welcome{mac(secret, "worker", p.Nonce, mine)})
}

var errVersion = errors.New("the worker and the coordinator are of different versions")

const handshakeTimeout = 10 * time.Second

// introduce is the coordinator's half.
func introduce(l *link, secret string) error {
	var h hello
	if err := l.expect(frameHello, handshakeTimeout, &h); err != nil {
		return err
	}
	if h.Version != protocolVersion || len(h.Nonce) != nonceSize {
		return errVersion
	}
	mine := nonce()
	if err := l.sendJSON(frameProof, proof{protocolVersion, mine, mac(secret, "coordinator", h.Nonce, mine)}); err != nil {
		return err
	}
	var w welcome
	if err := l.expect(frameWelcome, handshakeTimeout, &w); err != nil {
		return err
	}
	if !hmac.Equal(w.MAC, mac(secret, "worker", mine, h.Nonce)) {
		return errSecret
	}
	l.most = maxFrame
	return nil
}
