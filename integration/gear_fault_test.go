package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/workload"
)

// settlingConfig makes the server rewrite its packs all the time.
const settlingConfig = `version: 0.1
storage:
  delete: {enabled: true}
gear:
  settle: {interval: 1s, share: 100}
`

// restingConfig makes the server never rewrite its packs. The storage then holds exactly what the
// catalogue names.
const restingConfig = `version: 0.1
storage:
  delete: {enabled: true}
gear:
  settle: {disabled: true}
`

// TestGearKill kills the server at random moments while it converts what clients push and rewrites
// its packs. Afterwards every acknowledged image must export whole, and nothing may remain of
// interrupted work.
func TestGearKill(t *testing.T) {
	rounds := number(t, "SLIPWAY_GEARKILL_ROUNDS", 10)
	const perStore = 5 // so that ten rounds have both configurations
	random := seeded(t)
	for first := 0; first < rounds; first += perStore {
		config := settlingConfig
		if first/perStore%2 == 1 {
			config = restingConfig
		}
		gearKills(t, random, config, first, min(perStore, rounds-first))
	}
}

// gearKills runs rounds of kill and restart on a new store. It counts the rounds from first.
func gearKills(t *testing.T, random *rand.Rand, config string, first, rounds int) {
	t.Helper()
	const keep = 8 // images that stay from round to round
	ledger := &workload.Trees{}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: config})
	checked := 0
	for i := first; i < first+rounds; i++ {
		load := startGearLoad(t, s, ledger, fmt.Sprintf("kill/r%d", i), config == settlingConfig, random.Uint64())
		pause(10*time.Millisecond, 1500*time.Millisecond, random)
		load.expectErrors()
		s.Kill()
		if err := load.stop(); err != nil {
			t.Fatalf("round %d: before the kill: %v", i, err)
		}
		if random.IntN(3) == 0 { // kill again while the server cleans up
			s.Restart()
			pause(time.Millisecond, 50*time.Millisecond, random)
			s.Kill()
		}
		restart := s.Restart()
		if err := ledger.Settle(t.Context(), s.Client); err != nil {
			t.Fatalf("round %d: after the kill: %v", i, err)
		}
		images := ledger.Acknowledged()
		st := s.Converted()
		checkTrees(t, fmt.Sprintf("round %d: after the kill", i), s, images)
		checked += len(images)
		if config == restingConfig { // the server cleans up while it already serves
			proc.Poll(t, pollFor, "as many packs in the storage as in the catalogue", func() bool {
				return int64(len(s.PackObjects())) == s.GearStatus().Packs
			})
		}
		if err := ledger.Delete(t.Context(), s.Client, keep); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		s.Run("gc", "--now")
		s.Stop()
		s.Run("fsck")
		if left, err := os.ReadDir(filepath.Join(s.Root, "slipway", "gear", "tmp")); err != nil || len(left) > 0 {
			t.Errorf("round %d: temporary files are left: %v, %v", i, left, err)
		}
		t.Logf("round %d: %d images are there, ready after %s, %d packs of %d bytes", i, len(images), restart.Round(time.Millisecond), st.Packs, st.PackBytes)
		if i < first+rounds-1 {
			s.Restart()
		}
	}
	if checked == 0 {
		t.Error("nothing was acknowledged in any round: the test has tested nothing")
	}
	reclaimedPacks(t, s, ledger)
}

// reclaimedPacks deletes everything and checks that no pack stays in use. It expects a stopped
// server and leaves it stopped.
func reclaimedPacks(t *testing.T, s *slipway.Server, ledger *workload.Trees) {
	t.Helper()
	s.Restart()
	if err := ledger.Delete(t.Context(), s.Client, 0); err != nil {
		t.Fatal(err)
	}
	s.Run("gc", "--now", "--untagged")
	s.Run("settle", "--all")
	if st := s.GearStatus(); st.Packs != 0 || st.Files != 0 || st.Layers != 0 {
		t.Errorf("when all images are deleted there still are %+v", st)
	}
	s.Stop()
	s.Run("fsck")
}

// checkTrees exports images and compares every file with what was pushed.
func checkTrees(t *testing.T, when string, s *slipway.Server, images []*workload.Tree) {
	t.Helper()
	for _, image := range images {
		dir, err := s.TryExport(t.Context(), image.Name())
		if err == nil {
			err = image.Check(dir)
		}
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		removeAll(t, dir)
	}
}

// gearLoad pushes images, and makes the server rewrite its packs all the time.
type gearLoad struct {
	ctx    context.Context // of what runs until stop
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	calm   bool
	errs   []error
}

func startGearLoad(t *testing.T, s *slipway.Server, ledger *workload.Trees, prefix string, settle bool, seed uint64) *gearLoad {
	t.Helper()
	l := newGearLoad(t)
	l.wg.Go(func() { l.note(ledger.PushTrees(l.ctx, s.Client, prefix, pushers, seed)) })
	if settle {
		l.again(func(ctx context.Context) error { return settleAll(ctx, t, s) })
	}
	return l
}

func newGearLoad(t *testing.T) *gearLoad {
	ctx, cancel := context.WithCancel(t.Context())
	return &gearLoad{ctx: ctx, cancel: cancel, calm: true}
}

// again does something again and again until the load stops or it fails.
func (l *gearLoad) again(do func(context.Context) error) {
	l.wg.Go(func() {
		for l.ctx.Err() == nil && l.note(do(l.ctx)) {
			<-time.After(50 * time.Millisecond) // let some work pile up for the next time
		}
	})
}

func settleAll(ctx context.Context, t *testing.T, s *slipway.Server) error {
	_, err := slipway.Program(ctx, t, "settle", "--all", "--root", s.Root)
	return err
}

// note keeps an error unless errors are expected, and reports whether there was none.
func (l *gearLoad) note(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.calm {
		l.errs = append(l.errs, err)
	}
	return err == nil
}

// expectErrors announces that the server is about to fail.
func (l *gearLoad) expectErrors() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = false
}

// stop ends the load and returns the errors from before expectErrors.
func (l *gearLoad) stop() error {
	l.expectErrors()
	l.cancel()
	l.wg.Wait()
	return errors.Join(l.errs...)
}

// TestGearPowerCut copies the disk while the server converts and rewrites, in the state that a loss
// of power would leave. It checks that a server on the copy exports every image that was
// acknowledged when the copy was made.
func TestGearPowerCut(t *testing.T) {
	rounds := number(t, "SLIPWAY_GEARCUT_ROUNDS", 5)
	const perDisk = 5 // as in TestPowerCut
	random := seeded(t)
	lab := blockfs.NewLab(t)
	for first := 0; first < rounds; first += perDisk {
		gearCuts(t, lab, random, first, min(perDisk, rounds-first))
	}
}

func gearCuts(t *testing.T, lab *blockfs.Lab, random *rand.Rand, first, rounds int) {
	t.Helper()
	disk := lab.NewDisk(t, 2<<30)
	ledger := &workload.Trees{}
	s := slipway.Start(t, filepath.Join(disk.Dir, "root"), &slipway.Options{Config: settlingConfig})
	checked := 0
	for i := first; i < first+rounds; i++ {
		load := startGearLoad(t, s, ledger, fmt.Sprintf("cut/r%d", i), true, random.Uint64())
		pause(50*time.Millisecond, 1500*time.Millisecond, random)
		acknowledged := ledger.Acknowledged()
		after := disk.Cut(t)
		if err := load.stop(); err != nil {
			t.Fatalf("round %d: while the disk was copied: %v", i, err)
		}
		survivor := slipway.Start(t, filepath.Join(after.Dir, "root"), &slipway.Options{Config: settlingConfig})
		survivor.Converted()
		checkTrees(t, fmt.Sprintf("round %d: after the power cut", i), survivor, acknowledged)
		checked += len(acknowledged)
		survivor.Stop()
		survivor.Run("fsck")
		after.Discard(t)
		t.Logf("round %d: %d images are there", i, len(acknowledged))
		if err := errors.Join(ledger.Settle(t.Context(), s.Client), ledger.Delete(t.Context(), s.Client, 8)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	if checked == 0 {
		t.Error("nothing was acknowledged in any round: the test has tested nothing")
	}
	s.Stop()
	disk.Discard(t)
}
