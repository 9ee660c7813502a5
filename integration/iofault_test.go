package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/faultfs"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/integration/internal/workload"
)

// These are the places where the server keeps its files, below its root.
var (
	staging    = regexp.MustCompile(`^_staging/`)
	objects    = regexp.MustCompile(`^docker/registry/v2/blobs/`)
	anyObject  = regexp.MustCompile(`^(_staging|docker)/`)
	catalogue  = regexp.MustCompile(`^catalog\.db$`)
	catalogLog = regexp.MustCompile(`^catalog\.db-wal$`)
)

// ioFault is one way in which a disk fails.
type ioFault struct {
	rules []faultfs.Rule
	// status is the least status of the answers to failed requests. It is 0 if no request may fail
	// at all.
	status int
	// strikes is how often each rule strikes before it is lifted; default 5.
	strikes int
	// catalogue says that the catalogue still works, and so does everything that needs only it.
	catalogue bool
	// readers makes some clients read from the catalogue all the time.
	readers bool
}

// ioFaults returns the ways in which the disk fails. An error is EIO, answered with status 5xx; a
// lack of space is ENOSPC, answered with status 507.
func ioFaults() map[string]ioFault {
	fails := func(ops faultfs.Op, path *regexp.Regexp, err syscall.Errno) faultfs.Rule {
		return faultfs.Rule{Ops: ops, Path: path, Err: err}
	}
	atTimes := func(r faultfs.Rule) faultfs.Rule { r.P = 0.3; return r }
	done := func(r faultfs.Rule) faultfs.Rule { r.Done = true; return r }
	object := func(rules ...faultfs.Rule) ioFault {
		return ioFault{rules: rules, status: 500, catalogue: true}
	}
	catalog := func(status int, rules ...faultfs.Rule) ioFault { return ioFault{rules: rules, status: status} }
	return map[string]ioFault{
		"object create":          object(fails(faultfs.Create, staging, syscall.EIO)),
		"object write":           object(fails(faultfs.Write, staging, syscall.EIO)),
		"object write, at times": object(atTimes(fails(faultfs.Write, staging, syscall.EIO))),
		"object fsync":           object(fails(faultfs.Sync, staging, syscall.EIO)),
		"object close":           object(fails(faultfs.Flush, staging, syscall.EIO)),
		"object rename":          object(fails(faultfs.Rename, staging, syscall.EIO)),
		// The object is in place although the disk told the server otherwise, and it cannot be
		// deleted.
		"object rename done, no unlink": object(
			done(fails(faultfs.Rename, staging, syscall.EIO)), fails(faultfs.Unlink, anyObject, syscall.EIO)),
		"directory create": object(fails(faultfs.Create, objects, syscall.EIO)),
		"directory fsync":  object(fails(faultfs.SyncDir, nil, syscall.EIO)),

		"catalogue write":           catalog(500, fails(faultfs.Write, catalogLog, syscall.EIO)),
		"catalogue fsync":           catalog(500, fails(faultfs.Sync, catalogLog, syscall.EIO)),
		"catalogue fsync, at times": catalog(500, atTimes(fails(faultfs.Sync, catalogLog, syscall.EIO))),
		"catalogue full":            catalog(507, fails(faultfs.Write, catalogLog, syscall.ENOSPC)),
		// Only a checkpoint writes to the catalogue's own file, and the log also holds what it
		// writes. Readers make the checkpoint stop half way.
		"checkpoint write": {rules: []faultfs.Rule{fails(faultfs.Write, catalogue, syscall.EIO)}, strikes: 1, readers: true},
		"checkpoint fsync": {rules: []faultfs.Rule{fails(faultfs.Sync, catalogue, syscall.EIO)}, strikes: 1, readers: true},

		"full":         {rules: []faultfs.Rule{fails(faultfs.Space, nil, syscall.ENOSPC)}, status: 507, strikes: 20},
		"short writes": {rules: []faultfs.Rule{atTimes(faultfs.Rule{Ops: faultfs.Write, Short: true})}, strikes: 50},
		"slow fsync": {rules: []faultfs.Rule{
			{Ops: faultfs.Sync | faultfs.SyncDir, Delay: 200 * time.Millisecond, P: 0.5},
		}},
	}
}

// TestIOFaults makes the disk fail in one way after the other, under a load. What the server has
// acknowledged must be intact at every time. What it could not do must be refused clearly and leave
// nothing behind. When the disk works again the server must work too, without a restart. Then the
// fault strikes once more and the server is killed.
func TestIOFaults(t *testing.T) {
	random := seeded(t)
	for name, fault := range ioFaults() {
		t.Run(name, func(t *testing.T) {
			b := newFaultyBed(t, random, nil)
			b.strike(fault)
			b.works()
			b.killDuring(fault)
			b.server.Restart()
			b.settle("after the kill")
			b.works()
			b.endClean()
		})
	}
}

// TestIOFaultsAndPowerCut cuts the power after the disk has failed. Pages whose fsync
// failed then have their old content, although a later fsync of the file succeeded. In
// between, the server either continues or is killed and started again. A server that is
// started again finds data in the page cache that is not on the disk.
func TestIOFaultsAndPowerCut(t *testing.T) {
	random := seeded(t)
	faults := ioFaults()
	for _, name := range []string{"catalogue fsync", "catalogue fsync, at times", "checkpoint fsync", "object fsync"} {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, kill=%t", name, kill), func(t *testing.T) {
				b := newFaultyBed(t, random, &faultfs.Options{Volatile: true})
				b.strike(faults[name])
				if kill {
					b.killDuring(faults[name])
					b.server.Restart()
					b.settle("after the kill")
				}
				b.works()
				b.cutPower()
				b.settle("after the power cut")
				b.works()
				b.endClean()
			})
		}
	}
}

// TestDiskThatLies cuts the power while clients push, on a disk that keeps a random part
// of what was not synced: whole pages, sectors of pages, and names of files. Everything
// that was acknowledged must exist afterwards, and the server must not serve wrong bytes.
func TestDiskThatLies(t *testing.T) {
	random := seeded(t)
	for round := range number(t, "SLIPWAY_LYINGDISK_ROUNDS", 3) {
		b := newFaultyBed(t, random, &faultfs.Options{Volatile: true, Names: true, Torn: true})
		load := b.load()
		b.acknowledged(5 + random.IntN(40))
		pause(time.Millisecond, 100*time.Millisecond, random)
		load.ExpectErrors()
		b.server.Kill()
		if err := load.Stop(); err != nil {
			t.Fatalf("before the power cut: %v", err)
		}
		loss, err := b.disk.PowerCut(random)
		if err != nil {
			t.Fatal(err)
		}
		b.server.Root = b.backing
		b.server.Restart()
		b.settle("after the power cut")
		b.works()
		b.endClean()
		t.Logf("round %d: %d acknowledged; the cut took %+v", round, b.ledger.Acknowledged(), loss)
	}
}

// TestRefusedCommitComesBack covers a commit of the catalogue that is whole in its log although the
// fsync failed. The push is refused, and yet the next process finds the commit, unless another one
// was written over it. What the server does after the refusal must be right in both cases.
func TestRefusedCommitComesBack(t *testing.T) {
	b := newFaultyBed(t, seeded(t), nil)
	b.works()
	// The first sync is for the upload's intent, the second for the blob.
	b.disk.Inject(faultfs.Rule{Ops: faultfs.Sync, Path: catalogLog, After: 1, Err: syscall.EIO})
	takenBack := b.disk.Inject(faultfs.Rule{Ops: faultfs.Unlink, Path: objects, Delay: time.Second})
	data := bytes.Repeat([]byte("what came back "), 4000)
	refused := make(chan error, 1)
	go func() {
		_, err := b.server.Client.PushBlob(t.Context(), "io/back", data)
		refused <- err
	}()
	var err error
	proc.Poll(t, 20*time.Second, "refusal of the push", func() bool {
		select {
		case err = <-refused:
			refused <- err
			return true
		default:
			return takenBack.Strikes() > 0
		}
	})
	// From here on nothing is written over the commit that failed.
	b.disk.Inject(faultfs.Rule{Ops: faultfs.Write, Path: catalogLog, Err: syscall.EIO})
	if err := checkFaultStatus(<-refused, 500); err != nil {
		t.Error(err)
	}
	b.server.Kill()
	if err := b.disk.Close(); err != nil {
		t.Fatal(err)
	}
	b.server.Root = b.backing
	b.server.Restart()
	err = b.server.Client.CheckBlob(t.Context(), "io/back", wire.Digest(data), int64(len(data)))
	if err != nil && wire.StatusOf(err) != http.StatusNotFound {
		t.Errorf("the refused blob is neither absent nor whole: %v", err)
	}
	t.Logf("the refused blob: %v", err)
	b.endClean()
}

// TestReadsDuringSlowFsync measures reads while every fsync takes two seconds.
func TestReadsDuringSlowFsync(t *testing.T) {
	const (
		slow  = 2 * time.Second
		limit = slow / 2 // of all but the slowest 1 %: a read that waits for an fsync takes longer
	)
	b := newFaultyBed(t, seeded(t), nil)
	im := imagetest.Hello(t)
	if err := im.Push(t.Context(), b.server.Client, "io/read", "v1"); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 300<<10)
	if _, err := b.server.Client.PushBlob(t.Context(), "io/read", large); err != nil {
		t.Fatal(err)
	}
	paths := []string{"manifests/v1", "blobs/" + im.Blobs[0].Digest, "blobs/" + wire.Digest(large)}
	rule := b.disk.Inject(faultfs.Rule{Ops: faultfs.Sync | faultfs.SyncDir, Delay: slow})
	load := b.load()
	b.struck([]*faultfs.Injection{rule}, 1)
	var took []time.Duration
	for start := time.Now(); time.Since(start) < 2*slow; {
		for _, method := range []string{http.MethodHead, http.MethodGet} {
			path := "/v2/io/read/" + paths[len(took)/2%len(paths)]
			begin := time.Now()
			resp, err := b.server.Client.Do(t.Context(), method, path, nil, nil)
			took = append(took, time.Since(begin))
			if err != nil || resp.Status != http.StatusOK {
				t.Fatalf("%s %s: %v, %v", method, path, resp, err)
			}
		}
	}
	rule.Lift()
	if err := load.Drain(); err != nil {
		t.Errorf("while fsync was slow: %v", err)
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d reads: median %s, p99 %s", len(took), took[len(took)/2], p99)
	if p99 > limit {
		t.Errorf("p99 of %d reads is %s, want at most %s", len(took), p99, limit)
	}
	b.settle("after fsync was slow")
	b.endClean()
}

// TestUnreadableBlob makes the disk fail to read some blobs. A client must get either all of the
// right bytes or an error. A check names the blobs, a repair sets them aside, and a push brings
// them back.
func TestUnreadableBlob(t *testing.T) {
	b := newFaultyBed(t, seeded(t), nil)
	var blobs [][]byte
	for _, size := range []int{20 << 10, 200 << 10, 3 << 20} { // these sizes are read and sent in three different ways
		blob := bytes.Repeat([]byte{byte(size >> 10)}, size)
		blobs = append(blobs, blob)
		if _, err := b.server.Client.PushBlob(t.Context(), "io/bad", blob); err != nil {
			t.Fatal(err)
		}
	}
	b.works()
	for _, blob := range blobs {
		_, encoded, _ := strings.Cut(wire.Digest(blob), ":")
		b.disk.Inject(faultfs.Rule{Ops: faultfs.Read, Path: regexp.MustCompile(encoded + "/data$"), Err: syscall.EIO})
	}
	read := func() (errs []error) {
		for _, blob := range blobs {
			errs = append(errs, b.server.Client.CheckBlob(t.Context(), "io/bad", wire.Digest(blob), int64(len(blob))))
		}
		return errs
	}
	for i, err := range read() {
		// A wrong digest would mean that a client took a bad answer for a good one.
		if err == nil || strings.Contains(err.Error(), ": got ") {
			t.Errorf("read of %d bytes that the disk does not give: %v, want an answer with an error, or a cut connection", len(blobs[i]), err)
		}
	}
	b.works()
	b.server.Alive()
	b.stop()
	b.setAside(blobs)
	if err := b.disk.Close(); err != nil { // a new disk under the new files
		t.Fatal(err)
	}
	b.server.Root = b.backing
	b.server.Restart()
	for i, err := range read() {
		if wire.StatusOf(err) != http.StatusNotFound {
			t.Errorf("blob of %d bytes after the repair: %v, want status 404", len(blobs[i]), err)
		}
	}
	for _, blob := range blobs {
		if _, err := b.server.Client.PushBlob(t.Context(), "io/bad", blob); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(read()...); err != nil {
		t.Errorf("after a push: %v", err)
	}
	b.settle("after the repair")
	b.endClean()
}

// setAside checks and repairs a store whose disk cannot read the blobs.
func (b *faultyBed) setAside(blobs [][]byte) {
	b.t.Helper()
	out, err := slipway.Command(b.t, "fsck", "--root", b.server.Root)
	if err == nil {
		b.t.Error("fsck found nothing")
	}
	for _, blob := range blobs {
		if !strings.Contains(out, wire.Digest(blob)) {
			b.t.Errorf("fsck does not name %s:\n%s", wire.Digest(blob), out)
		}
	}
	b.server.Run("fsck", "--repair")
	if aside, err := filepath.Glob(filepath.Join(b.backing, "slipway", "quarantine", "sha256", "*")); err != nil || len(aside) != len(blobs) {
		b.t.Errorf("in quarantine: %v, %v; want %d blobs", aside, err, len(blobs))
	}
}

// faultyBed is a server on a disk that can fail.
type faultyBed struct {
	t       *testing.T
	random  *rand.Rand
	disk    *faultfs.FS
	backing string
	server  *slipway.Server
	ledger  *workload.Ledger
	loads   int
}

func newFaultyBed(t *testing.T, random *rand.Rand, opts *faultfs.Options) *faultyBed {
	t.Helper()
	b := &faultyBed{t: t, random: random, backing: t.TempDir(), ledger: &workload.Ledger{}}
	b.disk = faultfs.Mount(t, b.backing, opts)
	b.server = slipway.Start(t, b.disk.Dir, nil)
	return b
}

// load starts a load of pushes.
func (b *faultyBed) load() *workload.Load {
	b.loads++
	return workload.Start(b.server.Client, b.ledger, fmt.Sprintf("io/l%d", b.loads), pushers, b.random.Uint64())
}

// inject puts the rules of a fault into force.
func (b *faultyBed) inject(f ioFault) []*faultfs.Injection {
	var all []*faultfs.Injection
	for _, r := range f.rules {
		r.Seed = b.random.Uint64()
		all = append(all, b.disk.Inject(r))
	}
	return all
}

// struck waits until every rule has struck.
func (b *faultyBed) struck(injections []*faultfs.Injection, times int) {
	b.t.Helper()
	for _, i := range injections {
		proc.Poll(b.t, 20*time.Second, "strikes of the fault", func() bool { return i.Strikes() >= times })
	}
}

func lift(injections []*faultfs.Injection) {
	for _, i := range injections {
		i.Lift()
	}
}

// acknowledged waits until the server has acknowledged the given number of further pushes.
func (b *faultyBed) acknowledged(more int) {
	b.t.Helper()
	before := b.ledger.Acknowledged()
	proc.Poll(b.t, 20*time.Second, "acknowledged pushes", func() bool { return b.ledger.Acknowledged() >= before+more })
}

// settle checks everything that was acknowledged.
func (b *faultyBed) settle(when string) {
	b.t.Helper()
	if err := b.ledger.Settle(b.t.Context(), b.server.Client); err != nil {
		b.t.Fatalf("%s: %v", when, err)
	}
}

// strike makes a fault come and go under a load.
func (b *faultyBed) strike(f ioFault) {
	b.t.Helper()
	if f.strikes == 0 {
		f.strikes = 5
	}
	repo := fmt.Sprintf("io/bystander%d", b.loads)
	im := imagetest.Hello(b.t)
	if err := im.Push(b.t.Context(), b.server.Client, repo, "v1"); err != nil {
		b.t.Fatal(err)
	}
	if f.readers {
		defer b.read(repo)()
	}
	var refused atomic.Int64
	load := b.load()
	load.Judge(func(err error) error {
		refused.Add(1)
		return checkFaultStatus(err, f.status)
	})
	b.acknowledged(5)
	injections := b.inject(f)
	b.struck(injections, f.strikes)
	if f.status != 0 {
		// If a commit of several changes fails, the changes are tried again one by one, and can
		// then succeed.
		proc.Poll(b.t, 20*time.Second, "refused requests", func() bool { return refused.Load() > 0 })
	}
	if _, err := b.server.Client.CheckImage(b.t.Context(), repo, "v1"); err != nil {
		b.t.Errorf("a pull while the disk fails: %v", err)
	}
	if f.catalogue {
		if _, err := b.server.Client.PushBlob(b.t.Context(), repo, []byte("small enough to need no object")); err != nil {
			b.t.Errorf("a push that the failure does not concern: %v", err)
		}
	}
	lift(injections)
	b.server.Alive()
	if err := load.Drain(); err != nil {
		b.t.Fatalf("while the disk failed: %v", err)
	}
	if f.status == http.StatusInsufficientStorage {
		b.reclaimed()
	}
	b.settle("after the disk failed")
	b.t.Logf("%d requests refused, %d things acknowledged", refused.Load(), b.ledger.Acknowledged())
}

// read lists tags until the returned function is called. Tags come from the catalogue and from no
// cache.
func (b *faultyBed) read(repo string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range pushers {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := b.server.Client.Tags(b.t.Context(), repo, 0); err != nil {
					b.t.Errorf("a list while the disk fails: %v", err)
					return
				}
			}
		})
	}
	return func() { close(done); wg.Wait() }
}

// reclaimed checks that refused uploads take no space.
func (b *faultyBed) reclaimed() {
	b.t.Helper()
	left, err := os.ReadDir(filepath.Join(b.backing, "_staging"))
	if err != nil || len(left) > 0 {
		b.t.Errorf("uploads that were refused for want of space have left %d files (%v)", len(left), err)
	}
}

// works checks that every push succeeds again.
func (b *faultyBed) works() {
	b.t.Helper()
	load := b.load()
	b.acknowledged(10)
	if err := load.Drain(); err != nil {
		b.t.Fatalf("while the disk works: %v", err)
	}
}

// stop shuts the server down in an orderly way.
func (b *faultyBed) stop() {
	b.t.Helper()
	// The server waits for a connection that the client opened in advance, as its first request may
	// be on the way.
	b.server.Client.Close()
	b.server.Stop()
}

// endClean stops the server and checks what it leaves behind.
func (b *faultyBed) endClean() {
	b.t.Helper()
	b.stop()
	b.server.Run("fsck")
}

// killDuring kills the server while the disk fails.
func (b *faultyBed) killDuring(f ioFault) {
	b.t.Helper()
	load := b.load()
	load.Judge(func(error) error { return nil })
	b.acknowledged(5)
	injections := b.inject(f)
	b.struck(injections, 1)
	pause(time.Millisecond, 30*time.Millisecond, b.random)
	load.ExpectErrors()
	b.server.Kill()
	lift(injections)
	_ = load.Stop() // the load was told to expect every error
}

// cutPower kills the server, drops from the disk what was not yet on it, and starts the server on
// what is left.
func (b *faultyBed) cutPower() {
	b.t.Helper()
	b.server.Kill()
	loss, err := b.disk.PowerCut(b.random)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Logf("the power cut took %+v", loss)
	b.server.Root = b.backing
	b.server.Restart()
}

// checkFaultStatus checks that a request on a failing disk was refused with an error body and at
// least the given status. With status 0 the request must not be refused at all.
func checkFaultStatus(err error, least int) error {
	var status *wire.StatusError
	if least == 0 || !errors.As(err, &status) || status.Status < least || len(status.Codes) == 0 {
		return fmt.Errorf("got %w; want an error body with status %d or above, or success if that is 0", err, least)
	}
	return nil
}
