package filestore

import (
	"testing"

	"example.org/slipway/gear"
)

// TestPlaces checks that recently used places stay, that a second put replaces the first,
// and that a pack is forgotten with its last content.
func TestPlaces(t *testing.T) {
	at := func(i int) gear.Name { return gear.Name{byte(i), byte(i >> 8), 31: 1} }
	of := func(i int) place {
		return place{size: int64(i), off: int64(10 * i), stored: int64(i / 2), pack: gear.Name{9, byte(i / 4)}, encoding: gear.Zstd}
	}
	p := newPlaceTable(20)
	for i := range 20 {
		p.put(at(i), of(i))
	}
	for _, i := range []int{3, 11} {
		if got, ok := p.get(at(i)); !ok || got != of(i) {
			t.Errorf("place %d: got %+v, %v; want %+v", i, got, ok, of(i))
		}
	}
	for i := 20; i < 30; i++ {
		p.put(at(i), of(i))
	}
	items := make([]entry, 30)
	for i := range items {
		items[i] = entry{name: at(i), how: asUnknown}
	}
	items[25].how = asMissing // not allowed, so it is not looked up
	if n := p.locate(items); n != 10 || items[25].how != asMissing {
		t.Errorf("%d of 30 places are unknown, want 10; what is not allowed became %v", n, items[25].how)
	}
	for i, it := range items {
		if it.how == along && it.at != of(i) {
			t.Errorf("place %d: got %+v, want %+v", i, it.at, of(i))
		}
	}
	if items[3].how != along || items[11].how != along {
		t.Error("what was asked for is gone")
	}
	like := at(3) // has the same prefix as another name
	like[31] = 2
	if _, ok := p.get(like); ok {
		t.Error("got the place of another content")
	}
	p.put(like, of(7))
	if got, ok := p.get(like); !ok || got != of(7) {
		t.Errorf("got %+v, %v; want %+v", got, ok, of(7))
	}
	p.put(like, of(8))
	if got, _ := p.get(like); got != of(8) {
		t.Errorf("replaced: got %+v, want %+v", got, of(8))
	}
	for i := range 30 {
		p.drop(at(i))
	}
	p.drop(like)
	if len(p.at) != 0 || len(p.packAt) != 0 || len(p.free) != len(p.slots) || len(p.freePacks) != len(p.packs) {
		t.Errorf("left: %d contents, %d packs; %d of %d slots and %d of %d packs are free", len(p.at), len(p.packAt), len(p.free), len(p.slots), len(p.freePacks), len(p.packs))
	}
	for i := range 1000 {
		p.put(at(i), of(i%50))
		if len(p.at) > 20 || len(p.slots) > 20 || len(p.packAt) > 20 {
			t.Fatalf("after %d: %d contents in %d slots and %d packs", i, len(p.at), len(p.slots), len(p.packAt))
		}
	}
}
