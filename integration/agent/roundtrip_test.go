package agent_test

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// exchange holds the start and the end of a request.
type exchange struct {
	what       string
	begin, end time.Time
}

// inARow returns how many of the requests came one after the other: the largest number of requests
// of which no two overlap in time.
func inARow(all []exchange) (n int) {
	slices.SortFunc(all, func(a, b exchange) int { return a.end.Compare(b.end) })
	var last time.Time
	for _, e := range all {
		if e.begin.After(last) {
			n, last = n+1, e.end
		}
	}
	return n
}

// TestRoundTrips counts how often a node waits for a distant registry until the first container of
// an image starts with the files of its profile. It must wait once for everything that describes
// the image, and once for the files.
func TestRoundTrips(t *testing.T) {
	const files, far = 40, 300 * time.Millisecond
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", image(t, 1, files))
	node.Start(t, quiet).Run("profile", "record", "--runtime", tool.Built(t, "runc"), ref, "--", "one")
	g := behind(t, s)
	var mu sync.Mutex
	var all []exchange
	g.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		e := exchange{what: r.Method + " " + r.URL.Path, begin: time.Now()}
		time.Sleep(far) // the round trip
		pass.ServeHTTP(w, r)
		e.end = time.Now()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, e)
	})
	a := node.Start(t, quiet)
	began := time.Now()
	dir := a.Mount(g.ref(ref))
	took := time.Since(began)
	mu.Lock()
	got := slices.Clone(all)
	mu.Unlock()
	if img := a.Image(); img.ProfileFiles < files/2 || img.DemandFiles != 0 {
		t.Errorf("%d files came with the profile, %d on demand, want %d at least and 0", img.ProfileFiles, img.DemandFiles, files/2)
	}
	n := inARow(got)
	t.Logf("%d requests of the extension, %d in a row, %v", len(got), n, took)
	if n != 2 {
		slices.SortFunc(got, func(a, b exchange) int { return cmp.Compare(a.begin.UnixNano(), b.begin.UnixNano()) })
		for _, e := range got {
			_, what, _ := strings.Cut(e.what, "_slipway/gear")
			t.Logf("%s from %v to %v", what, e.begin.Sub(began), e.end.Sub(began))
		}
		t.Errorf("the node waits for the registry %d times in a row, want 2", n)
	}
	a.Run("umount", dir)
	proc.Poll(t, 10*time.Second, "nothing is mounted", func() bool { return len(a.Mounts()) == 1 })
}
