package recipes

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/registry/storage"
)

// objects returns the paths of the packs or of the parity files.
func (b *bed) objects(prefix string) []string {
	b.t.Helper()
	list, err := filepath.Glob(filepath.Join(b.dir, prefix, "*"))
	b.must(err)
	return list
}

// harms are what happens to an object. A nil result means that the object is gone.
func harms() map[string]func([]byte) []byte {
	return map[string]func([]byte) []byte{
		"flipped": func(p []byte) []byte { p[len(p)/3] ^= 0x40; return p },
		"zeroed":  func(p []byte) []byte { clear(p); return p },
		"cut":     func(p []byte) []byte { return p[:len(p)/2] },
		"longer":  func(p []byte) []byte { return append(p, "more"...) },
		"gone":    func([]byte) []byte { return nil },
	}
}

// harm damages an object and returns what it was.
func (b *bed) harm(path string, do func([]byte) []byte) (good []byte) {
	b.t.Helper()
	good, err := os.ReadFile(path)
	b.must(err)
	b.must(os.Remove(path))
	if bad := do(bytes.Clone(good)); bad != nil {
		b.must(os.WriteFile(path, bad, 0o600))
	}
	return good
}

// TestScrub checks that a scrub without parity finds damage, remembers it across a
// restart, reads each pack once in its time, and notices a pack that is back.
func TestScrub(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	b.push(compressed(6, archive(1, 30)))
	b.settle()
	scrub := func() ScrubReport {
		t.Helper()
		b.keeper.p.ScrubEvery = 24 * time.Hour
		rep, err := b.keeper.Scrub(t.Context())
		b.must(err)
		return rep
	}
	if rep := scrub(); rep.Packs > 0 {
		t.Errorf("%+v; want nothing read as long as no layer is dropped", rep)
	}
	b.drop()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	packs := b.objects(storage.PackPrefix)
	if rep := scrub(); rep.Packs != len(packs) || rep.Damaged > 0 || rep.Bytes == 0 {
		t.Errorf("%+v; want %d sound packs", rep, len(packs))
	}
	for harm, do := range harms() {
		b.pass(time.Minute)
		good := b.harm(packs[0], do)
		if rep := scrub(); rep.Packs > 0 {
			t.Errorf("%s: %+v; want nothing read before it is due", harm, rep)
		}
		b.pass(25 * time.Hour)
		if rep := scrub(); rep.Packs != len(packs) || rep.Damaged != 1 {
			t.Errorf("%s: %+v; want one of %d packs damaged", harm, rep, len(packs))
		}
		b.restart()
		b.alarm(harm, 1)
		b.pass(time.Minute)
		if rep := scrub(); rep.Packs != 1 || rep.Damaged != 1 {
			t.Errorf("%s: %+v; want the damaged pack read again", harm, rep)
		}
		_ = os.Remove(packs[0])
		b.must(os.WriteFile(packs[0], good, 0o600))
		b.pass(time.Minute)
		if rep := scrub(); rep.Packs != 1 || rep.Damaged != 0 {
			t.Errorf("%s: %+v; want the pack that is back read again", harm, rep)
		}
		b.alarm(harm, 0)
	}
}

// TestScrubRate checks that a scrub reads no faster than it may.
func TestScrubRate(t *testing.T) {
	t.Parallel()
	const perSec, n = 4 << 20, 6 << 20
	k := &Keeper{limiter: newLimiter(perSec)}
	began := time.Now()
	for range n / (256 << 10) {
		if err := k.limited(t.Context(), 256<<10); err != nil {
			t.Fatal(err)
		}
	}
	// The first MiB is free.
	if took, least := time.Since(began), time.Second*(n-1<<20)/perSec*9/10; took < least {
		t.Errorf("%d bytes took %v, want at least %v", n, took, least)
	}
}
