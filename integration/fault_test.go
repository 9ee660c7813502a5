package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/workload"
)

// pushers is the number of clients that push at the same time while a fault strikes.
const pushers = 4

// TestKill kills the server at random moments while clients push, and checks
// that everything it had acknowledged is still there.
func TestKill(t *testing.T) {
	rounds := number(t, "SLIPWAY_KILL_ROUNDS", 20)
	const perStore = 10 // rounds on one store: enough for leftovers to pile up
	random := seeded(t)
	for first := 0; first < rounds; first += perStore {
		killRounds(t, random, first, min(perStore, rounds-first))
	}
}

// killRounds runs rounds of kill and restart on a new store. It counts the rounds from first.
func killRounds(t *testing.T, random *rand.Rand, first, rounds int) {
	t.Helper()
	ledger := &workload.Ledger{}
	s := slipway.Start(t, t.TempDir(), nil)
	for i := first; i < first+rounds; i++ {
		load := workload.Start(s.Client, ledger, fmt.Sprintf("kill/r%d", i), pushers, random.Uint64())
		pause(10*time.Millisecond, 600*time.Millisecond, random)
		load.ExpectErrors()
		s.Kill()
		if err := load.Stop(); err != nil {
			t.Fatalf("round %d: before the kill: %v", i, err)
		}
		restart := s.Restart()
		if err := ledger.Settle(t.Context(), s.Client); err != nil {
			t.Fatalf("round %d: after the kill: %v", i, err)
		}
		s.Stop()
		s.Run("fsck")
		t.Logf("round %d: %d acknowledged on this store, ready after %s", i, ledger.Acknowledged(), restart.Round(time.Millisecond))
		if i < first+rounds-1 {
			s.Restart()
		}
	}
	if ledger.Acknowledged() == 0 {
		t.Error("nothing was acknowledged in any round: the test has tested nothing")
	}
}

// TestPowerCut copies the disk while clients push, in the state that a loss of power would leave.
// It checks that a server on the copy has everything that was acknowledged when the copy was made.
func TestPowerCut(t *testing.T) {
	rounds := number(t, "SLIPWAY_POWERCUT_ROUNDS", 5)
	const perDisk = 5 // rounds on one disk, which fills up as they go
	random := seeded(t)
	lab := blockfs.NewLab(t)
	for first := 0; first < rounds; first += perDisk {
		powerCuts(t, lab, random, first, min(perDisk, rounds-first))
	}
}

// powerCuts runs rounds on a new disk, all under one server. It counts the rounds from first.
func powerCuts(t *testing.T, lab *blockfs.Lab, random *rand.Rand, first, rounds int) {
	t.Helper()
	disk := lab.NewDisk(t, 2<<30)
	ledger := &workload.Ledger{}
	s := slipway.Start(t, filepath.Join(disk.Dir, "root"), nil)
	for i := first; i < first+rounds; i++ {
		load := workload.Start(s.Client, ledger, fmt.Sprintf("cut/r%d", i), pushers, random.Uint64())
		pause(50*time.Millisecond, 800*time.Millisecond, random)
		acknowledged := ledger.Mark()
		after := disk.Cut(t)
		// What began before this point may be on the copy; nothing later can be.
		if err := load.Stop(); err != nil {
			t.Fatalf("round %d: while the disk was copied: %v", i, err)
		}
		survivor := slipway.Start(t, filepath.Join(after.Dir, "root"), nil)
		if err := ledger.Check(t.Context(), survivor.Client, acknowledged); err != nil {
			t.Fatalf("round %d: after the power cut: %v", i, err)
		}
		survivor.Stop()
		survivor.Run("fsck")
		after.Discard(t)
		t.Logf("round %d: %d acknowledged on this disk", i, ledger.Acknowledged())
	}
	if ledger.Acknowledged() == 0 {
		t.Error("nothing was acknowledged in any round: the test has tested nothing")
	}
	s.Stop()
	disk.Discard(t)
}

// number returns the number in an environment variable, or def if the variable is not set.
func number(t *testing.T, name string, def int) int {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a positive number", name, v)
	}
	return n
}

// seeded returns the source of the test's random choices and logs its seed.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SLIPWAY_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("SLIPWAY_SEED=%q is not a number", v)
		}
	}
	t.Logf("SLIPWAY_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pause waits for a random time. This is a deliberate sleep: a fault has to strike at an arbitrary
// moment of the load.
func pause(least, most time.Duration, random *rand.Rand) {
	<-time.After(least + time.Duration(random.Int64N(int64(most-least))))
}

// settled waits until the server has about as many descriptors open as before. It allows for the
// few that the server's own work opens and closes.
func settled(t *testing.T, s *slipway.Server, before int) {
	t.Helper()
	const slack = 10
	proc.Poll(t, 30*time.Second, "descriptors closed", func() bool {
		n, err := s.Process.OpenFiles()
		return err == nil && n <= before+slack
	})
}
