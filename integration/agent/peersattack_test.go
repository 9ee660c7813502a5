package agent_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// stranger is a node that the test plays: a key, and what the registry answered to it.
type stranger struct {
	t    *testing.T
	cert tls.Certificate
	key  ed25519.PrivateKey
}

func newStranger(t *testing.T) *stranger {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return &stranger{t, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, private}
}

// introduced is a registry's answer to an announcement.
type introduced struct {
	Grant string
	Peers []struct{ Key, Address string }
}

// announce announces the stranger at an address, with the rights of a client.
func (s *stranger) announce(c *wire.Client, repo, manifest, address string) (a introduced, status int) {
	s.t.Helper()
	body := node.Announcement(s.t, s.key, manifest, address, true)
	resp, err := c.Do(s.t.Context(), http.MethodPost, "/v2/"+repo+"/_slipway/gear/peers", http.Header{"Content-Type": {"application/json"}}, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.Status == http.StatusOK {
		if err := json.Unmarshal(resp.Body, &a); err != nil {
			s.t.Fatal(err)
		}
	}
	return a, resp.Status
}

// met announces the stranger in a repository until the registry introduces it to the only other node,
// which announces its images after a moment. That node is the first of the answer's.
func (s *stranger) met(c *wire.Client, repo, manifest string) (in introduced) {
	s.t.Helper()
	proc.Poll(s.t, time.Minute, "introduction to the node", func() bool {
		var status int
		if in, status = s.announce(c, repo, manifest, ":1"); status != http.StatusOK {
			s.t.Fatalf("announcement in %s: %d", repo, status)
		}
		for i := range in.Peers {
			if !strings.HasSuffix(in.Peers[i].Address, ":1") {
				in.Peers = in.Peers[i:]
				return true
			}
		}
		return false
	})
	return in
}

// wholeFile stands for the chunk of a piece that is a file without chunks.
const wholeFile = ^uint32(0)

// piece returns the name of a piece as a request has it.
func piece(name []byte, chunk uint32) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(name), chunk)
}

// send sends a request to a node. The caller closes the body of the answer.
func (s *stranger) send(config *tls.Config, method, url, grant string, body []byte) (*http.Response, error) {
	config.InsecureSkipVerify = true
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(s.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Slipway-Grant", grant)
	req.Header.Set("Slipway-Fetch", "1")
	return client.Do(req)
}

// ask asks a node for files without chunks, and returns the status and the encoding of each answer: 0
// means that the node does not give it.
func (s *stranger) ask(addr, grant string, names ...[]byte) (status int, given []byte) {
	s.t.Helper()
	var pieces [][]byte
	for _, n := range names {
		pieces = append(pieces, piece(n, wholeFile))
	}
	return s.askPieces(addr, grant, pieces...)
}

// askPieces is ask for pieces.
func (s *stranger) askPieces(addr, grant string, pieces ...[]byte) (status int, given []byte) {
	s.t.Helper()
	resp, err := s.send(&tls.Config{Certificates: []tls.Certificate{s.cert}}, http.MethodPost, "https://"+addr+"/v1/pieces", grant, bytes.Join(pieces, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, b
	}
	for range pieces {
		var head [5]byte
		if _, err := io.ReadFull(resp.Body, head[:]); err != nil {
			s.t.Fatal(err)
		}
		given = append(given, head[0])
		if _, err := io.CopyN(io.Discard, resp.Body, int64(binary.LittleEndian.Uint32(head[1:]))); err != nil {
			s.t.Fatal(err)
		}
	}
	return resp.StatusCode, given
}

// peersUsers is a password file with alice and bob; each password is NAME-secret.
const peersUsers = `alice:$2y$04$fM71B85.wk0HMqNgBg/ase6.7UFIWi361HQQ0rm.l3gs5uMoRlsQ2
bob:$2y$04$X8aWIEWMOQVknu1LHRsn1u3wxRQ4NtJacuL0vaLHOaBjbE1VaJsSy
`

const peersAuth = `version: 0.1
storage: {delete: {enabled: true}}
auth:
  htpasswd: {path: %q}
  access:
    - {repositories: ["alice/**"], subjects: [alice], actions: [pull, push]}
    - {repositories: ["bob/**"], subjects: [bob, alice], actions: [pull, push]}
`

// TestPeerRights asks a node for files with every grant but the right one. The node holds an image
// of Alice and one of Bob. Nobody gets a byte that the grant does not cover, and the answer does
// not tell whether the node has the file.
func TestPeerRights(t *testing.T) {
	users := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(users, []byte(peersUsers), 0o600); err != nil {
		t.Fatal(err)
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(peersAuth, users)})
	alice, bob := s.Client.As("alice", "alice-secret"), s.Client.As("bob", "bob-secret")
	secret, open := []byte("the recipe of the house, which only Alice may read"), []byte("what Bob may read, too")
	pushAs := func(c *wire.Client, repo string, b *imagetest.Bundle) string {
		if err := b.Push(t.Context(), c, repo, "v1"); err != nil {
			t.Fatal(err)
		}
		return b.Top.Digest
	}
	kitchen := pushAs(alice, "alice/kitchen", oneFile("secret", secret, []byte("Alice's other")))
	own := pushAs(bob, "bob/own", oneFile("open", open, []byte("Bob's other")))
	s.Converted()
	a := node.Start(t, fmt.Sprintf("registries: [{host: %q, urls: [\"http://%[1]s\"], username: alice, password: alice-secret}]\n", s.Addr)+quiet+withPeers)
	for _, ref := range []string{"/alice/kitchen:v1", "/bob/own:v1"} {
		if _, err := os.ReadFile(filepath.Join(a.Mount(s.Addr+ref), "etc", "other")); err != nil {
			t.Fatal(err)
		}
	}
	x, y := newStranger(t), newStranger(t)
	right, others := x.met(alice, "alice/kitchen", kitchen), x.met(bob, "bob/own", own)
	stolen := y.met(alice, "alice/kitchen", kitchen)
	at := right.Peers[0].Address
	unknown := digestOf([]byte("nobody has this"))
	if status, given := x.ask(at, right.Grant, digestOf(secret), digestOf([]byte("Alice's other")), unknown, digestOf(open)); status != http.StatusOK || given[0] == 0 || given[1] == 0 || given[2] != 0 || given[3] != 0 {
		t.Errorf("with the right grant: %d %v, want two files and neither of the others", status, given)
	}
	// Bob knows the digest of Alice's file, and the node has it.
	status, given := x.ask(at, others.Grant, digestOf(secret), unknown, digestOf(open))
	if status != http.StatusOK || given[0] != 0 || given[1] != 0 || given[2] == 0 {
		t.Errorf("with a grant for Bob's repository: %d %v", status, given)
	}
	var refusals []string
	for what, grant := range map[string]string{"no grant": "", "a grant for another node": stolen.Grant, "a changed grant": change(right.Grant), "no text of a grant": "a.b",
		"a body alone": right.Grant[:strings.IndexByte(right.Grant, '.')+1], "a signature of another grant": right.Grant[:strings.IndexByte(right.Grant, '.')] + others.Grant[strings.IndexByte(others.Grant, '.'):]} {
		for _, name := range [][]byte{digestOf(secret), unknown} {
			status, body := x.ask(at, grant, name)
			if status != http.StatusForbidden {
				t.Errorf("%s: status %d", what, status)
			}
			refusals = append(refusals, string(body))
		}
	}
	for _, r := range refusals {
		if r != refusals[0] {
			t.Errorf("two refusals differ: %q, %q", refusals[0], r)
		}
	}
	// Who may not pull is not introduced, and learns nothing of the repository.
	for _, manifest := range []string{kitchen, wire.Digest([]byte("no manifest"))} {
		if _, status := x.announce(bob, "alice/kitchen", manifest, ":1"); status != http.StatusForbidden && status != http.StatusNotFound && status != http.StatusUnauthorized {
			t.Errorf("Bob announces himself in Alice's repository: %d", status)
		}
	}
	for _, wrong := range []string{"127.0.0.1", "example.org:1", "224.0.0.1:7", "0.0.0.0:7", ":0", ""} {
		if _, status := x.announce(alice, "alice/kitchen", kitchen, wrong); status != http.StatusBadRequest {
			t.Errorf("announcement at %q: %d", wrong, status)
		}
	}
}

// change changes one character in the middle of a text.
func change(s string) string {
	i := len(s) / 3
	return s[:i] + string(s[i]^1) + s[i+1:]
}

// TestBadPeers has a node introduced to nodes that lie, stall, never end, break off or are not there.
// The node must read only right bytes, from the registry, and soon.
func TestBadPeers(t *testing.T) {
	const files = 60
	s := slipway.Start(t, t.TempDir(), nil)
	b := image(t, 33, files)
	ref := push(t, s, "team/app:v1", b)
	frame := func(enc byte, n int, data []byte) []byte {
		return append(binary.LittleEndian.AppendUint32([]byte{enc}, uint32(n)), data...)
	}
	for name, answer := range map[string]http.HandlerFunc{
		"lies": func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(frame(1, 100, make([]byte, 100))); err != nil {
					return
				}
			}
		},
		"huge": func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(frame(1, 1<<31, make([]byte, 100))) },
		"bomb": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(frame(2, 20, []byte("(\xb5/\xfd\xa0\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")))
		},
		"stalls": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"stalls later": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(frame(0, 0, nil))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"drips": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(frame(0, 0, nil)[:1]); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(200 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		},
		"promises": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(frame(3, 0, nil)); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(100 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
		},
		"promises endlessly": func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(frame(3, 0, nil)); err != nil {
					return
				}
			}
		},
		"breaks off": func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"refuses":    func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"redirects": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+s.DebugAddr+"/readyz", http.StatusTemporaryRedirect)
		},
		"hints endlessly": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				w.Header().Set("Link", strings.Repeat("x", 4000))
				w.WriteHeader(http.StatusEarlyHints)
			}
		},
		"has a long header": func(w http.ResponseWriter, r *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprint("X-Long-", i), strings.Repeat("x", 4000))
			}
			w.WriteHeader(http.StatusOK)
		},
		"says that much is coming": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(frame(3, 1<<20, make([]byte, 1<<20)))
		},
		"lies about one of many": func(w http.ResponseWriter, r *http.Request) {
			// What it has not, and then a byte that is right for no file of this size.
			for range 3 {
				_, _ = w.Write(frame(0, 0, nil))
			}
			_, _ = w.Write(frame(1, 1, []byte{0}))
		},
		"has nothing": func(w http.ResponseWriter, r *http.Request) {
			for range 10_000 {
				if _, err := w.Write(frame(0, 0, nil)); err != nil {
					return
				}
			}
		},
		"has another key": nil, "is not there": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := newStranger(t)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			serves := bad.cert
			if name == "has another key" {
				serves, answer = newStranger(t).cert, func(http.ResponseWriter, *http.Request) { t.Error("a node was asked that has another key") }
			}
			srv := &http.Server{Handler: answer, TLSConfig: &tls.Config{Certificates: []tls.Certificate{serves}, ClientAuth: tls.RequireAnyClientCert}}
			done := make(chan struct{})
			if name == "is not there" {
				_ = l.Close()
				close(done)
			} else {
				go func() { defer close(done); _ = srv.ServeTLS(l, "", "") }()
			}
			defer func() { _ = srv.Close(); <-done }()
			repo := "bad/" + strings.ReplaceAll(name, " ", "-")
			if err := b.Push(t.Context(), s.Client, repo, "v1"); err != nil {
				t.Fatal(err)
			}
			s.Converted()
			_, rest, _ := strings.Cut(ref, "team/app")
			ref := s.Addr + "/" + repo + rest
			if _, status := bad.announce(s.Client, repo, b.Top.Digest, l.Addr().String()); status != http.StatusOK {
				t.Fatalf("announcement: %d", status)
			}
			a := node.Start(t, "fetch: {mode: eager, open_timeout: 20s}\n"+withPeers)
			began := time.Now()
			dir := a.Mount(ref)
			if n, failed, wrong := check(t, dir); n != files || failed+wrong > 0 {
				t.Errorf("%d files, %d failed, %d wrong\n%s", n, failed, wrong, a.Log())
			}
			t.Logf("all files after %v", time.Since(began))
			if st := a.Status(); st.Cache.Damaged > 0 || len(st.Sources) > 0 && st.Sources[0].Lies > 0 {
				t.Errorf("what the bad node did is blamed on others: %+v", st)
			}
		})
	}
}
