package gearfs_test

import (
	"testing"
	"time"

	"example.org/slipway/node/gearfs"
)

// TestLinkIsMeasured opens files of all sizes one after the other over a line of a known rate,
// and compares what the node knows of the line afterwards with the line. The node decides by that
// which files it fetches at once, and how many in one request.
func TestLinkIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const perSec, rtt = 4_000_000, 20 * time.Millisecond
	random := func(sizes ...int) (out [][]byte) {
		for i, size := range sizes {
			out = append(out, content(uint64(i), size))
		}
		return out
	}
	zeros := func(contents [][]byte) [][]byte {
		for i := range contents {
			for at := range contents[i] {
				if at>>18%4 > 0 { // three quarters, in pieces of 256 KiB and more
					contents[i][at] = 0
				}
			}
		}
		return contents
	}
	for name, contents := range map[string][][]byte{
		"files that come at once": random(600_000, 1_700_000, 900_000, 3_000_000, 560_000, 2_200_000),
		"small files":             random(20_000, 300_000, 70_000, 150_000, 400, 30_000, 600_000, 700_000),
		"a large file":            random(12 << 20),
		"a large file with holes": zeros(random(20 << 20)),
		"files with holes":        zeros(random(3_900_000, 2_200_000, 3_000_000, 1_700_000)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := makeTree(t, contents...)
			l, _, newNode := lineTo(t, contents)
			l.limit(perSec)
			l.rtt.Store(int64(rtt))
			n := newNode(gearfs.Options{Mode: gearfs.Lazy})
			var size int64
			began := time.Now()
			for _, f := range tr.files {
				n.check(tr, f)
				size += f.Size
			}
			rate := float64(size) / time.Since(began).Seconds()
			st := n.Status().Links
			if len(st) != 1 {
				t.Fatalf("links %+v", st)
			}
			t.Logf("%.1f MB/s of content came in all; measured %.1f MB/s after %v", rate/1e6, st[0].RatePerSec/1e6, st[0].RTT)
			if st[0].RatePerSec < rate/3 || st[0].RatePerSec > rate*3 {
				t.Errorf("%.1f MB/s of content came, and %.1f were measured", rate/1e6, st[0].RatePerSec/1e6)
			}
			if st[0].RTT < rtt || st[0].RTT > rtt+130*time.Millisecond {
				t.Errorf("an answer takes %v to begin, and %v were measured", rtt, st[0].RTT)
			}
		})
	}
}
