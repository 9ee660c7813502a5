package agent_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// TestPeersOfTwoRegistries has a registry of another tenant help a thief. It signs grants for
// repositories of the same names, and its indexes name files of the first registry, which the node
// has. The node gives the thief nothing of the first registry's, whatever he asks for.
func TestPeersOfTwoRegistries(t *testing.T) {
	first, second := slipway.Start(t, t.TempDir(), nil), slipway.Start(t, t.TempDir(), nil)
	evil := behind(t, second)
	helper := wire.New(evil.addr)
	defer helper.Close()
	for what, size := range map[string]int{"small": 3000, "large": 5 << 20} {
		secret, decoy := bytes.Repeat([]byte("top secret "), size/11), bytes.Repeat([]byte("harmless.. "), size/11)
		copy(secret, what)
		repo := "team/" + what
		honestly, falsely := oneFile("secret", secret, []byte("the first's")), oneFile("steal", decoy, []byte("the second's"))
		honest, thief := push(t, first, repo+":v1", honestly), push(t, second, repo+":v1", falsely)
		evil.set(rewritten(digestOf(decoy), digestOf(secret)))
		a := node.Start(t, quiet+withPeers)
		if got, err := os.ReadFile(filepath.Join(a.Mount(honest), "etc", "secret")); err != nil || !bytes.Equal(got, secret) {
			t.Fatalf("%s: the node reads %d bytes, error %v", what, len(got), err)
		}
		dir := a.Mount(evil.ref(thief))
		if got, err := os.ReadFile(filepath.Join(dir, "etc", "other")); err != nil || string(got) != "the second's" {
			t.Fatalf("%s: the node reads %q of the second registry's, error %v", what, got, err)
		}
		x := newStranger(t)
		right, wrong := x.met(first.Client, repo, honestly.Top.Digest), x.met(helper, repo, falsely.Top.Digest)
		at := right.Peers[0].Address
		if wrong.Peers[0].Address != at {
			t.Fatalf("two nodes: %s and %s", at, wrong.Peers[0].Address)
		}
		var pieces [][]byte
		for _, chunk := range []uint32{wholeFile, 0, 1, 4, 5, 1 << 31, wholeFile - 1} {
			pieces = append(pieces, piece(digestOf(secret), chunk))
		}
		other := piece(digestOf([]byte("the second's")), wholeFile)
		status, given := x.askPieces(at, wrong.Grant, append(pieces, other)...)
		if status != http.StatusOK || !bytes.Equal(given[:len(pieces)], make([]byte, len(pieces))) || given[len(pieces)] == 0 {
			t.Errorf("%s: with the second registry's grant: status %d, %v; want its own file alone", what, status, given)
		}
		// What is there is given to who may have it. Otherwise the above says nothing.
		want := []bool{true, false, false, false, false, false, false}
		if what == "large" {
			want = []bool{false, true, true, true, false, false, false}
		}
		status, given = x.askPieces(at, right.Grant, append(pieces, other)...)
		if status != http.StatusOK || given[len(pieces)] != 0 {
			t.Fatalf("%s: with the first registry's grant: status %d, %v", what, status, given)
		}
		for i, w := range want {
			if (given[i] != 0) != w {
				t.Errorf("%s: with the first registry's grant, piece %x is given: %v, want %v", what, pieces[i][32:], !w, w)
			}
		}
		// Each grant counts for what its registry signed, and for nothing else.
		if status, _ := x.askPieces(at, right.Grant+wrong.Grant, pieces...); status != http.StatusForbidden {
			t.Errorf("%s: with two grants in one: status %d", what, status)
		}
	}
}

// TestPeerDoor knocks at a node in ways in which no node does. Whoever has no grant gets the same answer
// to everything. Whoever has one learns nothing but the pieces of its repository.
func TestPeerDoor(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), nil)
	b := oneFile("file", []byte("what the node has"), []byte("other"))
	ref := push(t, s, "team/app:v1", b)
	a := node.Start(t, quiet+withPeers)
	if _, err := os.ReadFile(filepath.Join(a.Mount(ref), "etc", "file")); err != nil {
		t.Fatal(err)
	}
	x := newStranger(t)
	in := x.met(s.Client, "team/app", b.Top.Digest)
	at := "https://" + in.Peers[0].Address
	mine := func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{x.cert}} }
	one := piece(digestOf([]byte("what the node has")), wholeFile)
	// A stranger without a key, and one who speaks an older TLS, do not get as far as a request.
	for what, config := range map[string]*tls.Config{"no key": {}, "TLS 1.2": {Certificates: []tls.Certificate{x.cert}, MaxVersion: tls.VersionTLS12}} {
		if resp, err := x.send(config, http.MethodPost, at+"/v1/pieces", in.Grant, one); err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s: status %d", what, resp.StatusCode)
		}
	}
	for _, tt := range []struct {
		method, path string
		body         []byte
		want         int // with the right grant
	}{
		{http.MethodPost, "/v1/pieces", one, http.StatusOK},
		{http.MethodPost, "/v1/pieces", nil, http.StatusBadRequest},
		{http.MethodPost, "/v1/pieces", one[:35], http.StatusBadRequest},
		{http.MethodPost, "/v1/pieces", append(bytes.Clone(one), 0), http.StatusBadRequest},
		{http.MethodPost, "/v1/pieces", bytes.Repeat(one, 4096), http.StatusOK},
		{http.MethodPost, "/v1/pieces", bytes.Repeat(one, 4097), http.StatusBadRequest},
		{http.MethodGet, "/v1/pieces", nil, http.StatusNotFound},
		{http.MethodGet, "/v1/opens", nil, http.StatusNotFound}, // of no image
		{http.MethodPost, "/v1/opens", one, http.StatusNotFound},
		{http.MethodPost, "/v1/pieces/", one, http.StatusNotFound},
		{http.MethodPost, "/v1/../v1/pieces", one, http.StatusNotFound},
		{http.MethodGet, "/", nil, http.StatusNotFound},
		{http.MethodGet, "/metrics", nil, http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", nil, http.StatusNotFound},
		{http.MethodGet, "/v1/status", nil, http.StatusNotFound},
		{http.MethodPut, "/v1/pieces", one, http.StatusNotFound},
		{http.MethodDelete, "/v1/pieces", nil, http.StatusNotFound},
	} {
		for grant, want := range map[string]int{in.Grant: tt.want, "": http.StatusForbidden, change(in.Grant): http.StatusForbidden} {
			resp, err := x.send(mine(), tt.method, at+tt.path, grant, tt.body)
			if errors.Is(err, syscall.ECONNRESET) && grant != in.Grant && len(tt.body) > 64<<10 {
				continue // the node refused before it had read the list
			}
			if err != nil {
				t.Errorf("%s %s: %v", tt.method, tt.path, err)
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s %s with %d bytes, right grant %v: status %d, want %d", tt.method, tt.path, len(tt.body), grant == in.Grant, resp.StatusCode, want)
			}
		}
	}
	if status, given := x.askPieces(in.Peers[0].Address, in.Grant, one); status != http.StatusOK || given[0] == 0 {
		t.Errorf("afterwards the node gives nothing to who may have it: status %d, %v", status, given)
	}
}
