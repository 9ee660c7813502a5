package server_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
)

// TestProfileVotes checks that a client's report about an image counts once an hour, however often
// it is sent, and separately for another client or image.
func TestProfileVotes(t *testing.T) {
	now := atomic.Int64{}
	now.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	clock := func() time.Time { return time.Unix(0, now.Load()) }
	b, m := newGearBed(t, server.Options{Auth: newAuth(t, auth.Config{}), Clock: clock})
	n := 0
	// counts reports something new and returns whether it was accepted.
	counts := func(user, repo string, manifest oci.Digest) bool {
		t.Helper()
		n++
		file := name{byte(n), byte(n >> 8), 1}
		body := []byte(`{"names":["sha256:` + hex.EncodeToString(file[:]) + `"]}`)
		if a := b.ask("POST", "/v2/"+repo+"/_slipway/gear/profiles/"+string(manifest), body, basic(user), "Content-Type: application/json"); a.Status != 202 {
			t.Fatalf("%s: answered %d %s", user, a.Status, a.Body)
		}
		got, err := m.Profile(t.Context(), repo, manifest)
		return err == nil && len(got.Names) == 1 && got.Names[0] == file
	}
	one, two := oci.SHA256([]byte("1")), oci.SHA256([]byte("2"))
	for hour := range 3 {
		for k := range 20 {
			if got := counts("alice", "shared", one); got != (k == 0) {
				t.Errorf("hour %d, report %d counts: %t", hour, k, got)
			}
		}
		if !counts("alice", "shared", two) || !counts("bob", "shared", one) {
			t.Error("a report of another image or client does not count")
		}
		now.Add(int64(time.Hour))
	}
	// A report without any effect does not count as a vote.
	none := oci.SHA256([]byte("no manifest"))
	for range 2 {
		if a := b.ask("POST", "/v2/shared/_slipway/gear/profiles/"+string(none), []byte(`{"names":["sha256:`+strings.Repeat("0", 64)+`"]}`), basic("alice"), "Content-Type: application/json"); a.Status != 404 {
			t.Errorf("a report of an image that is not there is answered %d %s", a.Status, a.Body)
		}
	}
}

// TestAnonymousReports checks that anonymous clients may report only if they may do
// everything or if the configuration allows it. Otherwise they are asked for credentials:
// a node that has a password may pull without it, and sends it only when it is asked.
func TestAnonymousReports(t *testing.T) {
	d := oci.SHA256([]byte("m"))
	for _, c := range []struct {
		auth, allowed bool
		want          int
	}{{false, false, 202}, {true, false, 401}, {true, true, 202}} {
		book := fleet.NewBook(nil)
		o := server.Options{Nodes: book, AnonymousReports: c.allowed}
		if c.auth {
			o.Auth = newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: new(false)}})
		}
		b, m := newGearBed(t, o)
		report := []byte(`{"node":"n1","image":"i"}`)
		if a := b.ask("POST", "/v2/public/a/_slipway/gear/nodes", report); a.Status != c.want || len(book.Nodes()) != btoi(c.want == 202) {
			t.Errorf("%+v: a node's report is answered %d %s", c, a.Status, a.Body)
		}
		a := b.ask("POST", "/v2/public/a/_slipway/gear/profiles/"+string(d), []byte(fmt.Sprintf(`{"names":["sha256:%064x"]}`, 1)), "Content-Type: application/json")
		if got, err := m.Profile(t.Context(), "public/a", d); a.Status != c.want || err != nil || len(got.Names) != btoi(c.want == 202) {
			t.Errorf("%+v: a profile's report is answered %d %s", c, a.Status, a.Body)
		}
		if asked := a.Header.Get("WWW-Authenticate") != ""; asked != (c.want == 401) {
			t.Errorf("%+v: asked for a password: %t", c, asked)
		}
		if a := b.ask("POST", "/v2/public/a/_slipway/gear/nodes", []byte(`{"node":"n2","image":"i"}`), basic("alice")); a.Status != 202 {
			t.Errorf("%+v: the report of a user is answered %d %s", c, a.Status, a.Body)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
