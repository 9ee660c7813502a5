package tiers

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/storage"
)

// Start is how long a registry takes to become ready on a bucket with many blobs.
type Start struct {
	Run   measure.Run `json:"run"`
	Blobs int         `json:"blobs"`
	// Note says why there are fewer blobs than there should be.
	Note string `json:"note,omitempty"`
	// Ready holds the times by round, in milliseconds, with the files in the page cache.
	// Empty holds the times for an empty bucket.
	Ready   []float64 `json:"ready_ms"`
	Empty   []float64 `json:"empty_ms"`
	PeakRSS int64     `json:"peak_rss"`
}

const (
	startRepo = "bench/start"
	// blobSpace is the disk space that a small object takes together with its directory.
	blobSpace = 9 << 10
	adoptEach = 5000
)

// startBlob returns the bytes of a blob. It is large enough to be an object in principle,
// and small enough to make a million of them.
func startBlob(i int) []byte { return fmt.Appendf(nil, "blob %d of a large bucket", i) }

func runStart(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Start{Blobs: pick(b, 1_000_000, 20_000)}
	if room, err := free(b.Dir); err != nil {
		return err
	} else if need := int64(out.Blobs) * blobSpace; room < need+2e9 {
		out.Note = fmt.Sprintf("%d blobs need %s MB of disk and %s MB are free: 100000 are taken", out.Blobs, measure.Megabytes(need), measure.Megabytes(room))
		out.Blobs = 100_000
		b.Logf("%s", out.Note)
	}
	h := newHost(b)
	defer h.close()
	s, bucket, err := h.bucket(backendtest.S3)
	if err != nil {
		return err
	}
	for _, c := range []struct {
		blobs int
		to    *[]float64
	}{{0, &out.Empty}, {out.Blobs, &out.Ready}} {
		dir := b.NewDir()
		defer b.Remove(dir)
		if c.blobs > 0 {
			if err := fill(b, ctx, dir, filepath.Join(s.Dir, bucket), c.blobs); err != nil {
				return err
			}
		}
		for range b.Run.Rounds {
			if err := out.start(b, ctx, dir, s3(s3Name, s.Endpoint, bucket, s), c.blobs, c.to); err != nil {
				return err
			}
		}
	}
	b.Logf("ready after %s ms, empty after %s ms", measure.SpreadOf(out.Ready), measure.SpreadOf(out.Empty))
	out.Run = b.Since(began)
	b.results.Start = out
	return nil
}

// start starts a registry once, and asks it for a blob.
func (x *Start) start(b *bench, ctx context.Context, dir string, store backend, blobs int, to *[]float64) error {
	r, err := b.serve(ctx, "start", dir, store.driver+"  blob_cache: {ram: 64MiB, ssd: 1GiB}\n")
	if err != nil {
		return err
	}
	defer r.stop()
	*to = append(*to, r.Ready.Seconds()*1e3)
	if blobs > 0 {
		data := startBlob(blobs - 1)
		if _, err := measure.Get(ctx, http.DefaultClient, r.url(startRepo, fmt.Sprintf("sha256:%x", sha256.Sum256(data))),
			int64(len(data)), make([]byte, 4096)); err != nil {
			return err
		}
	}
	peak, err := r.Process.PeakRSS()
	x.PeakRSS = max(x.PeakRSS, peak)
	return err
}

// fill makes blobs in a bucket of versitygw, which stores an object as a file. It also
// makes rows for the blobs in the catalogue of a registry that has never run.
func fill(b *bench, ctx context.Context, dir, bucket string, blobs int) error {
	b.Logf("making %d blobs", blobs)
	if err := os.MkdirAll(filepath.Join(dir, "root"), 0o700); err != nil {
		return err
	}
	cat, err := catalog.Open(ctx, filepath.Join(dir, "root", registry.CatalogFile), nil)
	if err != nil {
		return err
	}
	defer cat.Close() //nolint:errcheck // closes after an error; otherwise it is closed below
	var rows []catalog.AdoptRow
	for i := range blobs {
		data := startBlob(i)
		d := oci.SHA256(data)
		path := filepath.Join(bucket, filepath.FromSlash(storage.BlobKey(d)))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		rows = append(rows, catalog.AdoptRow{Repo: startRepo, Blob: &catalog.Blob{Digest: d, Size: int64(len(data))}})
		if len(rows) == adoptEach || i == blobs-1 {
			if _, err := cat.Adopt(ctx, rows); err != nil {
				return fmt.Errorf("record blobs: %w", err)
			}
			rows = rows[:0]
		}
	}
	return cat.Close()
}

// free returns the free bytes on the disk of a directory.
func free(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look for room: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Title is the heading.
func (x *Start) Title() string { return "Start on a large bucket" }

// Head says how the part was measured.
func (x *Start) Head() string {
	if x.Note != "" {
		return x.Run.Head() + "\n- " + x.Note
	}
	return x.Run.Head()
}

// About says what was done.
func (x *Start) About() string {
	return fmt.Sprintf("A registry is started on a bucket of versitygw with %d blobs, each an object, with a catalogue on the local disk that knows them all, and `/readyz` is requested until it says yes. The time counts from the start of the process. Then one of the blobs is requested. The program makes the rows and objects, the rows through package catalog.", x.Blobs)
}

// Targets returns the target of a start within two seconds.
func (x *Start) Targets() []measure.Target {
	t := measure.TargetOf("start", fmt.Sprintf("ready on %d blobs", x.Blobs), 2000, false, x.Ready)
	t.Unit, t.Figure = " ms", t.Rounds.Max
	return []measure.Target{t}
}

// Write writes the table.
func (x *Start) Write(w *strings.Builder) {
	measure.Table(w, 1, []string{"bucket", "ready ms"}, [][]string{
		{"empty", measure.SpreadOf(x.Empty).String()}, {fmt.Sprintf("%d blobs", x.Blobs), measure.SpreadOf(x.Ready).String()},
	})
	fmt.Fprintf(w, "\nLargest resident set: %s MB.\n", measure.Megabytes(x.PeakRSS))
}

// Pictures returns no pictures.
func (x *Start) Pictures() []measure.Picture { return nil }
