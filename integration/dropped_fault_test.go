package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/workload"
)

// churning is the configuration of a server that drops each layer at once, stores it again as soon
// as somebody pulls it, and settles and scrubs packs all the time.
const churning = `version: 0.1
log: {accesslog: {disabled: true}}
storage:
  delete: {enabled: true}
  rebuild:
    cold_after: 1ms
    again: 1ms
    interval: 1s
    least_bytes: 1
    least_rate: 0
    most_recipe: 100
    share: 100
    bring_back_after: 1
    scrub_every: 1ms
    scrub_rate: 0
gear:
  settle: {interval: 1s, share: 100}
`

// keptImages is the number of images that stay from round to round.
const keptImages = 8

// TestChurnKill kills the server at random moments while layers are pushed, dropped, pulled, stored
// again, settled and scrubbed, and again while it recovers. Each acknowledged image must be pulled
// with its digests after that. Now and then a pack is lost as well.
func TestChurnKill(t *testing.T) {
	kills := number(t, "SLIPWAY_CHURNKILL_KILLS", 20)
	const perStore = 200 // kills on one store
	random := seeded(t)
	for first := 0; first < kills; first += perStore {
		churnKills(t, random, first, min(perStore, kills-first))
	}
}

// churnKills kills a server on a new store so many times. It counts the kills from first.
func churnKills(t *testing.T, random *rand.Rand, first, kills int) {
	t.Helper()
	c := &churn{t: t, random: random, ledger: &workload.Trees{Dense: true}}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: churning})
	for round, n := 0, 0; n < kills; round++ {
		load := c.start(s, fmt.Sprintf("churn/k%d", first+n))
		c.await(s)
		load.expectErrors()
		s.Kill()
		n++
		if err := load.stop(); err != nil {
			t.Fatalf("kill %d: before it: %v", first+n, err)
		}
		for n < kills && random.IntN(6) > 0 { // while the server takes up its work again
			s.Restart()
			pause(time.Millisecond, time.Second, random)
			s.Kill()
			n++
		}
		c.check(s, fmt.Sprintf("kill %d", first+n))
		s.Restart()
		if err := c.ledger.Delete(t.Context(), s.Client, keptImages); err != nil {
			t.Fatalf("kill %d: %v", first+n, err)
		}
		s.Run("gc", "--now")
	}
	t.Logf("%d kills; %d dropped layers at all checks together, and %d packs lost", kills, c.dropped, c.lost)
}

// TestChurnPowerCut copies the disk during the same, in the state that a loss of power would leave.
// A server on the copy must have each image that was acknowledged when the copy was made.
func TestChurnPowerCut(t *testing.T) {
	cuts := number(t, "SLIPWAY_CHURNCUT_ROUNDS", 4)
	const perDisk = 5 // as in TestPowerCut
	random := seeded(t)
	lab := blockfs.NewLab(t)
	for first := 0; first < cuts; first += perDisk {
		churnCuts(t, lab, random, first, min(perDisk, cuts-first))
	}
}

// churnCuts cuts the power of a new disk so many times. It counts the cuts from first.
func churnCuts(t *testing.T, lab *blockfs.Lab, random *rand.Rand, first, cuts int) {
	t.Helper()
	disk := lab.NewDisk(t, 2<<30)
	c := &churn{t: t, random: random, ledger: &workload.Trees{Dense: true}}
	s := slipway.Start(t, filepath.Join(disk.Dir, "root"), &slipway.Options{Config: churning})
	for i := first; i < first+cuts; i++ {
		load := c.start(s, fmt.Sprintf("churn/c%d", i))
		c.await(s)
		acknowledged := c.ledger.Acknowledged()
		after := disk.Cut(t)
		if err := load.stop(); err != nil {
			t.Fatalf("cut %d: while the disk was copied: %v", i, err)
		}
		survivor := slipway.Start(t, filepath.Join(after.Dir, "root"), &slipway.Options{Config: churning})
		survivor.Kill() // it may lose a pack, as after a kill
		c.checkImages(survivor, fmt.Sprintf("cut %d", i), acknowledged)
		after.Discard(t)
		if err := errors.Join(c.ledger.Settle(t.Context(), s.Client), c.ledger.Delete(t.Context(), s.Client, keptImages)); err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
	}
	t.Logf("%d cuts; %d dropped layers at all checks together, and %d packs lost", cuts, c.dropped, c.lost)
	s.Stop()
	disk.Discard(t)
}

// churn is a server's work with layers that come and go, and what it was seen to do.
type churn struct {
	t      *testing.T
	random *rand.Rand
	ledger *workload.Trees
	busy   bool // whether the last load has pushed all the time
	// dropped is how many dropped layers there were at all checks together, and lost how many packs
	// were lost before checks.
	dropped, lost int64
}

// start settles, pulls and rehydrates. It also pushes: at first only, or all the time, but never in
// the first round.
func (c *churn) start(s *slipway.Server, prefix string) *gearLoad {
	c.t.Helper()
	c.busy = len(c.ledger.Acknowledged()) > 0 && c.random.IntN(3) == 0
	if !c.busy {
		c.pushSome(s, prefix+"/first")
	}
	load := newGearLoad(c.t)
	if c.busy {
		seed := c.random.Uint64()
		load.wg.Go(func() { load.note(c.ledger.PushTrees(load.ctx, s.Client, prefix, 2, seed)) })
	}
	load.again(func(ctx context.Context) error { return settleAll(ctx, c.t, s) })
	pull, rehydrate := c.picker(2), c.picker(10)
	load.again(func(ctx context.Context) error {
		im := pull()
		if im == nil {
			return nil
		}
		_, err := s.Client.CheckImage(ctx, im.Repo, im.Tag)
		return err
	})
	load.again(func(ctx context.Context) error {
		im := rehydrate()
		if im == nil {
			return nil
		}
		_, err := slipway.Program(ctx, c.t, "rehydrate", "--root", s.Root, im.Name())
		return err
	})
	return load
}

// pushSome pushes up to four images. There are more than those that stay, so that each round has
// layers that come and layers that go.
func (c *churn) pushSome(s *slipway.Server, prefix string) {
	c.t.Helper()
	want := len(c.ledger.Acknowledged()) + 1 + c.random.IntN(4)
	load := startGearLoad(c.t, s, c.ledger, prefix, false, c.random.Uint64())
	proc.Poll(c.t, 5*time.Minute, "images to be pushed", func() bool { return len(c.ledger.Acknowledged()) >= want })
	if err := errors.Join(load.stop(), c.ledger.Settle(c.t.Context(), s.Client)); err != nil {
		c.t.Fatal(err)
	}
}

// await lets the work go on. If nobody pushes, it first waits until a layer is dropped: beside
// pushes, a pass may take as long as they do.
func (c *churn) await(s *slipway.Server) {
	c.t.Helper()
	most := 2500 * time.Millisecond
	if !c.busy {
		proc.Poll(c.t, 5*time.Minute, "a layer to be dropped", func() bool { return countRecipes(c.t, s).Layers > 0 })
		most = time.Second
	}
	pause(10*time.Millisecond, most, c.random)
}

// picker returns a function that returns any acknowledged image once in so many times, and nil
// otherwise.
func (c *churn) picker(times int) func() *workload.Tree {
	random := rand.New(rand.NewPCG(c.random.Uint64(), 0))
	return func() *workload.Tree {
		if images := c.ledger.Acknowledged(); len(images) > 0 && random.IntN(times) == 0 {
			return images[random.IntN(len(images))]
		}
		return nil
	}
}

// check finds out what was pushed, and checks all of it. It expects a server that does not run, and
// leaves it so.
func (c *churn) check(s *slipway.Server, when string) {
	c.t.Helper()
	s.Restart()
	if err := c.ledger.Settle(c.t.Context(), s.Client); err != nil {
		c.t.Fatalf("%s: %v", when, err)
	}
	s.Kill()
	c.checkImages(s, when, c.ledger.Acknowledged())
}

// checkImages starts a server, pulls images, and stops the server. Every other time, a pack is lost
// first.
func (c *churn) checkImages(s *slipway.Server, when string, images []*workload.Tree) {
	c.t.Helper()
	loss := "no pack was lost"
	if c.random.IntN(2) == 0 {
		if pack := c.losePack(s); pack != "" {
			loss = "pack " + pack[:12] + " was lost"
		}
	}
	restart := s.Restart()
	dropped := countRecipes(c.t, s).Layers
	c.dropped += dropped
	for _, im := range images {
		if _, err := s.Client.CheckImage(c.t.Context(), im.Repo, im.Tag); err != nil {
			c.t.Fatalf("%s, %d layers were dropped, %s: %v; the server printed:\n%s", when, dropped, loss, err, s.Process.Log(8192))
		}
	}
	s.Stop()
	if loss != "no pack was lost" {
		s.Run("fsck", "--repair")
	}
	s.Run("fsck")
	c.t.Logf("%s: %d images are there, %d layers were dropped, %s, ready after %s", when, len(images), dropped, loss, restart.Round(time.Millisecond))
}

// losePack deletes or damages any pack, and returns its name, or "" if there is none.
func (c *churn) losePack(s *slipway.Server) string {
	c.t.Helper()
	packs := s.PackObjects()
	if len(packs) == 0 {
		return ""
	}
	slices.Sort(packs)
	pack := packs[c.random.IntN(len(packs))]
	path := filepath.Join(s.Root, "slipway", "gear", "packs", pack)
	c.lost++
	if c.random.IntN(2) == 0 {
		if err := os.Remove(path); err != nil {
			c.t.Fatal(err)
		}
		return pack
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.t.Fatal(err)
	}
	for range 1 + c.random.IntN(100) {
		data[c.random.IntN(len(data))] ^= 0x55
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return pack
}
