package peers

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

func newExchange(t *testing.T) *Exchange {
	t.Helper()
	x, err := New(&Options{Announce: func(context.Context, gearfs.SourceRef, *peering.Announcement) (*peering.Answer, error) {
		return nil, errors.New("no registry")
	}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// TestGrantsEnd checks who may read what, by the clocks of registries that differ from this
// node's by hours.
func TestGrantsEnd(t *testing.T) {
	for _, ahead := range []time.Duration{0, -5 * time.Hour, 7 * time.Hour} {
		x := newExchange(t)
		here := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		sign := func(seed byte, g *peering.Grant) (string, ed25519.PublicKey) {
			key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
			text, err := peering.Sign(g, key)
			if err != nil {
				t.Fatal(err)
			}
			return text, key.Public().(ed25519.PublicKey)
		}
		holder := peering.Key{7}
		ends := here.Add(ahead).Add(15 * time.Minute)
		grant, signer := sign(1, &peering.Grant{Repo: "a", Holder: holder, Ends: ends.Unix()})
		late, _ := sign(1, &peering.Grant{Repo: "a", Holder: holder, Ends: ends.Add(time.Hour).Unix()})
		_, second := sign(2, &peering.Grant{Repo: "a", Holder: holder, Ends: ends.Unix()})
		forged, _ := sign(3, &peering.Grant{Repo: "a", Holder: holder, Ends: ends.Unix()})
		x.vouch(place{"r1", "a"}, &peering.Answer{Time: here.Add(ahead), Signer: signer}, here)
		x.vouch(place{"r1", "b"}, &peering.Answer{Time: here.Add(ahead), Signer: signer}, here)
		x.vouch(place{"r2", "a"}, &peering.Answer{Time: here.Add(ahead), Signer: second}, here)
		for name, c := range map[string]struct {
			grant  string
			holder peering.Key
			at     time.Time
			want   []gearfs.SourceRef
		}{
			"now":          {grant, holder, here, []gearfs.SourceRef{{Registry: "r1", Repo: "a"}}},
			"near its end": {grant, holder, here.Add(15 * time.Minute), []gearfs.SourceRef{{Registry: "r1", Repo: "a"}}},
			"expired":      {grant, holder, here.Add(16 * time.Minute), nil},
			"long unseen":  {late, holder, here.Add(31 * time.Minute), nil},
			"stolen":       {grant, peering.Key{8}, here, nil},
			"forged":       {forged, holder, here, nil},
			"none":         {"", holder, here, nil},
		} {
			from, err := x.allows(c.grant, c.holder, c.at)
			if (err == nil) != (c.want != nil) {
				t.Errorf("registry %v ahead, %s: error %v", ahead, name, err)
				continue
			}
			if err != nil {
				continue
			}
			for _, ref := range []gearfs.SourceRef{{Registry: "r1", Repo: "a"}, {Registry: "r1", Repo: "b"}, {Registry: "r2", Repo: "a"}, {Registry: "r1", Repo: "a/b"}, {}} {
				if got := from(ref); got != slices.Contains(c.want, ref) {
					t.Errorf("registry %v ahead, %s: %v is allowed: %v", ahead, name, ref, got)
				}
			}
		}
	}
}

// TestOwners checks that nodes that know each other agree on the owner of each piece, that owners
// have about equal shares, and that a node that comes or is left out changes few owners.
func TestOwners(t *testing.T) {
	const nodes, files, chunks = 20, 4000, 400
	keys := make([]peering.Key, nodes+1)
	for i := range keys {
		keys[i] = sha256.Sum256(fmt.Append(nil, "node", i))
	}
	known := func(self int, n int) *plan {
		p := &plan{self: keys[self]}
		for i := range n {
			if i != self {
				p.members = append(p.members, &member{peer: &peer{key: keys[i]}})
			}
		}
		slices.SortFunc(p.members, func(a, b *member) int { return slices.Compare(a.key[:], b.key[:]) })
		return p
	}
	ownerOf := func(p *plan, of piece) peering.Key {
		if m := p.owner(of); m != nil {
			return m.key
		}
		return p.self
	}
	var pieces []piece
	for i := range files {
		pieces = append(pieces, piece{sha256.Sum256(fmt.Append(nil, "file", i)), whole})
	}
	for i := range chunks {
		pieces = append(pieces, piece{sha256.Sum256([]byte("large")), int32(i)})
	}
	count, moved := map[peering.Key]int{}, 0
	for _, of := range pieces {
		want := ownerOf(known(0, nodes), of)
		count[want]++
		for self := 1; self < nodes; self += 6 {
			if got := ownerOf(known(self, nodes), of); got != want {
				t.Fatalf("piece %x %d: node 0 says %v, node %d says %v", of.name[:4], of.chunk, want, self, got)
			}
		}
		if ownerOf(known(0, nodes+1), of) != want {
			moved++
		}
		if got := ownerOf(known(0, nodes-1), of); want != keys[nodes-1] && got != want {
			t.Fatalf("without another node, piece %x %d is not its owner's", of.name[:4], of.chunk)
		}
	}
	const share = (files + chunks) / nodes
	if least, most := slices.Min(slices.Collect(maps.Values(count))), slices.Max(slices.Collect(maps.Values(count))); len(count) != nodes || least < share/2 || most > share*2 {
		t.Errorf("%d of %d nodes own between %d and %d of %d pieces", len(count), nodes, least, most, len(pieces))
	}
	if moved > 2*len(pieces)/nodes {
		t.Errorf("a node that comes changes the owner of %d of %d pieces", moved, len(pieces))
	}
}

// TestFrames sends contents of many kinds and sizes.
func TestFrames(t *testing.T) {
	for _, n := range []int{0, 1, minCompressed - 1, minCompressed, 4096, gear.ChunkSize, gear.LargeFile - 1} {
		for _, b := range [][]byte{bytes.Repeat([]byte("text "), n/5+1)[:n], noise(n)} {
			f := frameOf(b)
			sum := gear.Name(sha256.Sum256(b))
			wire := append(f.appendHeader(nil), f.data...)
			got, err := readFrame(bytes.NewReader(wire), n)
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			if out, err := got.open(n, sum); err != nil || !bytes.Equal(out, b) {
				t.Errorf("%d bytes: got %d, error %v", n, len(out), err)
			}
			if _, err := got.open(n, gear.Name{}); !errors.Is(err, errLie) {
				t.Errorf("%d bytes pass for others: %v", n, err)
			}
			if _, err := readFrame(bytes.NewReader(wire[:len(wire)-1]), n); err == nil && len(wire) > frameHeader {
				t.Errorf("%d bytes: a frame that is cut off is taken", n)
			}
		}
	}
}

func noise(n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		sum := sha256.Sum256(fmt.Append(nil, i))
		b = append(b, sum[:]...)
	}
	return b[:n]
}

// FuzzFrame checks that no frame makes the reader take other bytes than those that were asked for,
// or more memory than they need.
func FuzzFrame(f *testing.F) {
	want := bytes.Repeat([]byte("what was asked for "), 100)
	sum := gear.Name(sha256.Sum256(want))
	fr := frameOf(want)
	f.Add(append(fr.appendHeader(nil), fr.data...))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := readFrame(io.LimitReader(bytes.NewReader(b), 1<<20), len(want))
		if err != nil || fr.enc == missing || fr.enc == coming {
			return
		}
		if len(fr.data) > len(want) {
			t.Errorf("a frame of %d bytes is read", len(fr.data))
		}
		if out, err := fr.open(len(want), sum); err == nil && !bytes.Equal(out, want) {
			t.Error("other bytes are taken")
		}
	})
}

func FuzzPieces(f *testing.F) {
	f.Add(appendPieces(nil, []piece{{gear.Name{1}, whole}, {gear.Name{2}, 7}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := parsePieces(b); err == nil && !bytes.Equal(appendPieces(nil, list), b) {
			t.Errorf("%x is read as %v", b, list)
		}
	})
}

// TestBans checks that a ban grows, ends, and is forgotten by a node that serves.
func TestBans(t *testing.T) {
	p := &peer{late: new(pace.Metronome)}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var last time.Duration
	for range 5 {
		p.ban(now, deadBan)
		d := p.until.Sub(now)
		if d <= last || p.usable(now.Add(d-1)) || !p.usable(now.Add(d)) {
			t.Fatalf("a ban of %v follows one of %v", d, last)
		}
		p.ban(now, deadBan) // a second request that failed at the same time
		if got := p.until.Sub(now); got != d {
			t.Errorf("requests that fail together ban for %v instead of %v", got, d)
		}
		now, last = now.Add(d), d
	}
	p.served()
	if p.ban(now, deadBan); p.until.Sub(now) != deadBan {
		t.Errorf("after it served, a node is banned for %v", p.until.Sub(now))
	}
	for range 40 {
		p.ban(now, lieBan)
		now = p.until
	}
	if d := p.until.Sub(now); d > maxBan {
		t.Errorf("the longest ban is %v", d)
	}
}
