package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/trace/store"
	"example.org/slipway/workload/trace/tracetest"
)

// TestFullDisk writes four days to a disk with room for about two, after one day that was
// stored before, with and without temporary files. In the end every stored day must be
// complete.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount a small disk")
	}
	const each = 15_000 // the file of a day takes about 0.5 MB
	for _, tc := range []struct {
		name string
		o    store.WriterOptions
	}{
		{"in memory", store.WriterOptions{}},
		{"spilled", store.WriterOptions{Memory: 1 << 20}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1536k"); err != nil {
				t.Skipf("no tmpfs can be mounted: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, 0); err != nil {
					t.Errorf("unmount: %v", err)
				}
			})
			before := tracetest.Records(500, time.Hour, 30)
			write(t, dir, nil, "a", before)
			w, err := store.NewWriter(dir, &tc.o)
			if err != nil {
				t.Fatal(err)
			}
			for day := 1; day <= 4 && err == nil; day++ {
				recs := tracetest.Records(each, 24*time.Hour, uint64(30+day))
				for i := range recs {
					recs[i].Time = recs[i].Time.AddDate(0, 0, day)
					if err = w.Add("a", &recs[i]); err != nil {
						break
					}
				}
			}
			if cerr := w.Close(); err == nil {
				err = cerr
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("error %v, want that the disk is full", err)
			}
			s := tracetest.Open(t, dir)
			for _, z := range s.Zones() {
				t.Logf("%d days, %d records", len(z.Days), z.Records)
			}
			got := tracetest.ReadAll(t, s, store.Query{Zone: "a", To: start.AddDate(0, 0, 1)})
			if diff := cmp.Diff(tracetest.ByTime(before), got); diff != "" {
				t.Errorf("what was there before has changed (-want +got):\n%s", diff)
			}
			for day := 1; day <= 4; day++ {
				n := len(tracetest.ReadAll(t, s, store.Query{Zone: "a", From: start.AddDate(0, 0, day), To: start.AddDate(0, 0, day+1)}))
				if n != 0 && n != each {
					t.Errorf("day %d has %d records, want all %d or none", day, n, each)
				}
			}
			for _, pattern := range []string{".part-*", "*/.part-*"} {
				if left, err := filepath.Glob(filepath.Join(dir, pattern)); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			}
			write(t, dir, nil, "b", before[:10]) // there is room for a little again
		})
	}
}
