package engine

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"example.org/slipway/registry/catalog/catalogtest"
)

// killedLog holds a catalogue's files as a killed process leaves them: with acknowledged changes
// followed by lazy ones.
type killedLog struct {
	files  map[string][]byte // by what follows the catalogue's name
	acked  []int
	synced logPlace
}

// killLog makes the changes and copies the files. If old is set, the log is restarted first, so
// that frames of an earlier round follow its end.
func killLog(t *testing.T, old bool) *killedLog {
	t.Helper()
	c := openTest(t, nil)
	k := &killedLog{files: map[string][]byte{}}
	change := func(n int, write func(int) error) {
		t.Helper()
		if err := write(n); err != nil {
			t.Fatal(err)
		}
		k.acked = append(k.acked, n)
	}
	durably := func(n int) error { return c.Write(t.Context(), func(x *Tx) error { return put(x, n) }) }
	lazily := func(n int) error { return c.WriteLazy(t.Context(), func(x *Tx) error { return put(x, n) }) }
	if old {
		for n := range 20 {
			change(n, durably)
		}
		var busy, pages, copied int
		if err := c.Row(t.Context(), "PRAGMA wal_checkpoint(RESTART)", nil, &busy, &pages, &copied); err != nil {
			t.Fatal(err)
		}
	}
	for n := 20; n < 25; n++ {
		change(n, durably)
		change(n+100, lazily)
	}
	k.acked = k.acked[:len(k.acked)-1] // no commit that was synced came after it
	path := c.lite.file.Name()
	for _, suffix := range []string{"", "-wal", markSuffix} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		k.files[suffix] = b
	}
	m, err := readMark(path + markSuffix)
	if err != nil || m.frames == 0 {
		t.Fatalf("the mark is %+v, %v", m, err)
	}
	k.synced = m
	return k
}

// open opens a catalogue from the files with another log.
func (k *killedLog) open(t *testing.T, log []byte, mark bool) (path string, err error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "catalog.db")
	for suffix, b := range k.files {
		if suffix == "-wal" {
			b = log
		}
		if suffix == markSuffix && !mark {
			continue
		}
		if err := os.WriteFile(path+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Open(t.Context(), path, nil)
	if err != nil {
		return path, err
	}
	defer c.Close()
	rows := c.testRows(t)
	for _, n := range k.acked {
		if rows[strconv.Itoa(n)] != 1 {
			return path, errLost
		}
	}
	return path, nil
}

var errLost = errors.New("acknowledged changes are lost")

// size returns how many bytes of the log are synced.
func (k *killedLog) size() int { return logHeader + int(k.synced.frames)*(frameHeader+pageBytes) }

// TestFlippedLog flips bits all over the log of a killed process. No acknowledged change is lost
// unnoticed, the log is kept, and an operator who accepts the loss can continue.
func TestFlippedLog(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, old := range map[string]bool{"first round": false, "later round": true} {
		t.Run(name, func(t *testing.T) {
			k := killLog(t, old)
			rng := rand.New(rand.NewPCG(1, 1))
			at := []int{0, 3, 9, 17, 25, logHeader, logHeader + 5, logHeader + 9, logHeader + 17, k.size() - 1}
			for range 30 {
				at = append(at, rng.IntN(k.size()))
			}
			for _, i := range at {
				log := slices.Clone(k.files["-wal"])
				log[i] ^= 1 << rng.IntN(8)
				var damaged *LogDamagedError
				path, err := k.open(t, log, true)
				if !errors.As(err, &damaged) {
					t.Errorf("byte %d of %d flipped: %v", i, k.size(), err)
					continue
				}
				if kept, err := os.ReadFile(damaged.Copy); err != nil || !slices.Equal(kept, log) {
					t.Errorf("byte %d: the copy of the log has %d bytes of %d, %v", i, len(kept), len(log), err)
				}
				if err := os.Remove(damaged.Mark); err != nil {
					t.Error(err)
				}
				c, err := Open(t.Context(), path, nil)
				if err != nil {
					t.Errorf("byte %d, the loss is accepted: %v", i, err)
					continue
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestTornLog damages the log only after its synced part, like a loss of power. The catalogue opens
// with everything that was acknowledged as durable. It also opens if the log lacks what the mark of
// an earlier round says.
func TestTornLog(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for name, old := range map[string]bool{"first round": false, "later round": true} {
		t.Run(name, func(t *testing.T) {
			k := killLog(t, old)
			rng := rand.New(rand.NewPCG(2, 2))
			for range 30 {
				log := slices.Clone(k.files["-wal"])
				tail := log[k.size():]
				switch rng.IntN(3) {
				case 0:
					log = log[:k.size()+rng.IntN(len(tail)+1)]
				case 1:
					clear(tail[rng.IntN(len(tail)):])
				case 2:
					tail[rng.IntN(len(tail))] ^= 8
				}
				if _, err := k.open(t, log, true); err != nil {
					t.Errorf("a torn end: %v", err)
				}
			}
			if _, err := k.open(t, k.files["-wal"], false); err != nil {
				t.Errorf("without a mark: %v", err)
			}
		})
	}
	first, later := killLog(t, false), killLog(t, true)
	later.files[markSuffix] = first.synced.encode()
	if _, err := later.open(t, later.files["-wal"], true); err != nil {
		t.Errorf("with the mark of another round: %v", err)
	}
}

// TestMarkAfterClose checks that a catalogue that was closed and opened again has a mark that
// claims nothing of the removed log.
func TestMarkAfterClose(t *testing.T) {
	b := catalogtest.SQLite(t)
	for n := range 3 {
		c, err := try(t, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := readMark(b.Path + markSuffix); err != nil || n > 0 && m.frames != 0 {
			t.Errorf("open %d: the mark says %+v, %v", n, m, err)
		}
		if err := c.Write(t.Context(), func(x *Tx) error { return put(x, n) }); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
