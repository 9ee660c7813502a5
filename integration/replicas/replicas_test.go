package replicas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/replicas/history"
)

const (
	writers = 16
	readers = 64
	// recovery is the time after the last fault within which everything must be there again.
	recovery = 40 * time.Second
	// longRun is the length from which a run also waits for what takes minutes: the sweep of
	// uploads that nobody continued.
	longRun = 2 * time.Minute
)

// runFor returns the duration in SLIPWAY_REPLICAS_FOR.
func runFor(t *testing.T) time.Duration {
	t.Helper()
	v := os.Getenv("SLIPWAY_REPLICAS_FOR")
	if v == "" {
		return 40 * time.Second
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		t.Fatalf("SLIPWAY_REPLICAS_FOR=%q is not a duration", v)
	}
	return d
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SLIPWAY_REPLICAS_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("SLIPWAY_REPLICAS_SEED=%q is not a number", v)
		}
	}
	t.Logf("SLIPWAY_REPLICAS_SEED=%d", seed)
	return seed
}

// TestReplicas runs three replicas under 16 writers and 64 readers, while one thing after another
// breaks and garbage is collected all the time. They must keep every promise. Afterwards everything
// must be everywhere, without anybody's help.
func TestReplicas(t *testing.T) {
	d, seed := runFor(t), seedOf(t)
	w := newWorld(newBed(t, 3, seed, ""), seed)
	stop, wait := w.load(t, seed)
	c := &chaos{b: w.b, t: t, rng: rand.New(rand.NewPCG(seed, 77)), short: d < longRun}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	c.run(ctx)
	mended := time.Now()
	ready := w.b.waitReady()
	t.Logf("all replicas ready %s after the faults", ready.Round(time.Millisecond))
	// The load continues for a moment without faults.
	time.Sleep(time.Second)
	stop()
	wait()
	w.recovered(t, mended)
	meanwhile := w.collected(t)
	w.judge(t, w.rec.Ops())
	t.Logf("%s of faults: %s; store: %s", d, c.summary(), w.b.store.Summary())
	t.Logf("%d contents were collected meanwhile", meanwhile)
	// A collector that was killed keeps the others from collecting for a minute.
	proc.Poll(t, grace+2*time.Minute, "garbage is collected", func() bool { return w.collected(t) > 0 })
	if d >= longRun {
		w.swept(t)
	}
	w.b.stop()
	out := w.b.replicas[0].run(t, "fsck")
	t.Logf("fsck: %s", strings.TrimSpace(out))
}

// newWorld returns what the clients of a bed know at the start.
func newWorld(b *bed, seed uint64) *world {
	w := &world{b: b, rec: history.NewRecorder()}
	for i, size := range []int{1, 500, 16 << 10, 16<<10 + 1, 40_000, 90_000, 150_000, 400_000, 1 << 20, 6 << 20} {
		w.pool = append(w.pool, content(seed^uint64(i), size))
	}
	for i := range 4 {
		w.tags = append(w.tags, [2]string{sharedRepo, fmt.Sprintf("t%d", i)})
	}
	for i := range writers {
		for _, tag := range ownTags {
			w.tags = append(w.tags, [2]string{ownRepo(i), tag})
		}
	}
	return w
}

// load starts all clients. stop makes them end after their current work, and wait waits for that.
func (w *world) load(t *testing.T, seed uint64) (stop, wait func()) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range writers + readers {
		c := w.newClient(i, seed)
		wg.Go(func() {
			defer c.close()
			if i < writers {
				(&writer{client: c, repo: ownRepo(i)}).run(ctx, 700*time.Millisecond)
			} else {
				c.read(ctx, 250*time.Millisecond)
			}
		})
	}
	return stop, wg.Wait
}

// recovered reads everything that may exist from every replica, until the read succeeds. The reads
// are judged with the rest of the history.
func (w *world) recovered(t *testing.T, mended time.Time) {
	t.Helper()
	w.calm.Store(true)
	// From here on, no stale value can excuse a read.
	time.Sleep(digestBound)
	w.mu.Lock()
	images := w.images
	w.mu.Unlock()
	w.everywhere(func(c *client, replica int) {
		w.readTags(t, c, replica, mended)
		for i, img := range images {
			if i%len(w.b.replicas) != replica && len(images) > 1000 { // a long run has many
				continue
			}
			w.until(t, mended, fmt.Sprintf("%s@%s at replica %d", img.repo, img.digest, replica), func() bool {
				m, ok := c.readManifest(t.Context(), replica, img.repo, img.digest, manifestCell(img.repo, img.digest))
				return ok && (m == nil || c.readBlobs(t.Context(), replica, img.repo, img.digest, img.blobs))
			})
		}
	})
	t.Logf("%d tags and %d images read from every replica %s after the faults", len(w.tags), len(images), time.Since(mended).Round(time.Millisecond))
	// This reads everything once more: all replicas must have chosen the same of several concurrent
	// pushes.
	time.Sleep(tagBound)
	w.everywhere(func(c *client, replica int) { w.readTags(t, c, replica, mended) })
}

// everywhere does something at all replicas at once.
func (w *world) everywhere(do func(c *client, replica int)) {
	var wg sync.WaitGroup
	for replica := range w.b.replicas {
		c := w.newClient(writers+readers+replica, 1)
		wg.Go(func() {
			defer c.close()
			do(c, replica)
		})
	}
	wg.Wait()
}

func (w *world) readTags(t *testing.T, c *client, replica int, mended time.Time) {
	for _, at := range w.tags {
		w.until(t, mended, fmt.Sprintf("tag %s:%s at replica %d", at[0], at[1], replica), func() bool {
			_, ok := c.readManifest(t.Context(), replica, at[0], at[1], tagCell(at[0], at[1]))
			return ok
		})
	}
}

// until repeats what fails until the time for recovery is over. What succeeds at the first try is
// not late, however much there is to read.
func (w *world) until(t *testing.T, mended time.Time, what string, ok func() bool) {
	for first := true; !ok(); first = false {
		if t.Context().Err() != nil || time.Since(mended) > recovery && !first {
			t.Errorf("%s cannot be read %s after the faults", what, time.Since(mended).Round(time.Second))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// judge checks the history and reports it.
func (w *world) judge(t *testing.T, ops []history.Op) {
	t.Helper()
	if file := os.Getenv("SLIPWAY_REPLICAS_HISTORY"); file != "" {
		var text strings.Builder
		for _, o := range ops {
			fmt.Fprintf(&text, "%s\t%s\n", o, o.Cell)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Error(err)
		}
	}
	found := history.Check(ops, history.Limits{Stale: staleBound, Answer: answerLimit})
	rules := map[string]int{}
	for _, v := range found {
		if rules[v.Rule]++; rules[v.Rule] <= 5 {
			t.Errorf("%s", v)
		}
	}
	for rule, n := range rules {
		t.Logf("violations: %d x %s", n, rule)
	}
	kinds, status, excuses, slowest := map[string]int{}, map[int]int{}, map[string]int{}, history.Op{}
	for _, o := range ops {
		kinds[o.Kind.String()]++
		if o.Kind == history.Failed || o.Kind == history.MayWrite {
			status[o.Status]++
		}
		if o.Excuse != "" {
			excuses[o.Excuse]++
		}
		if o.End-o.Start > slowest.End-slowest.Start {
			slowest = o
		}
	}
	t.Logf("%d requests, %d operations: %v; failed by status: %v; excused: %v; the slowest: %s", w.count.Load(), len(ops), kinds, status, excuses, slowest)
	if kinds["write"] < 100 || kinds["read"] < 100 {
		t.Error("too little was done to test anything")
	}
}

// collectedLine matches a replica's log line of a collection, with the number of contents.
var collectedLine = regexp.MustCompile(`(?i)garbage collected.* deleted=(\d+)`)

// collected returns how many contents the collectors deleted, according to their logs.
func (w *world) collected(t *testing.T) int {
	t.Helper()
	n := 0
	for _, r := range w.b.replicas {
		for _, m := range collectedLine.FindAllStringSubmatch(tail(r.logFile(), 1<<30), -1) {
			k, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
	return n
}

// swept waits until nothing remains of uploads that nobody continued.
func (w *world) swept(t *testing.T) {
	t.Helper()
	c, err := minio.New(w.b.s3.Endpoint, &minio.Options{Creds: credentials.NewStaticV4(w.b.s3.AccessKey, w.b.s3.SecretKey, ""), Region: w.b.s3.Region})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	proc.Poll(t, 5*time.Minute, "uploads that nobody continues are swept", func() bool {
		left = nil
		for u := range c.ListIncompleteUploads(t.Context(), w.b.bucket, "", true) {
			if u.Err != nil {
				t.Fatal(u.Err)
			}
			left = append(left, u.Key)
		}
		for o := range c.ListObjects(t.Context(), w.b.bucket, minio.ListObjectsOptions{Recursive: true}) {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
			// The store's own probe of its abilities stays.
			if !strings.HasSuffix(o.Key, "/data") && !strings.HasSuffix(o.Key, "/probe") {
				left = append(left, o.Key)
			}
		}
		return len(left) == 0
	})
}
