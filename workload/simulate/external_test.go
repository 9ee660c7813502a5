package simulate_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/simulate"
)

// program writes a shell script as a policy. Such tests are not parallel: the kernel refuses
// to start a file while a process that another test forks still has it open.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return "exec:" + path
}

// fifo is first in, first out as a program.
const fifo = `queue=(); head=0
while IFS='{}":[], ' read -r _ _ event _ _ layer _; do
	case $event in
	add) queue+=("$layer") ;;
	evict) echo "${queue[head]}"; head=$((head + 1)) ;;
	esac
done
`

// TestExternalPolicy compares a program that is first in, first out with the product's own policy,
// on random requests.
func TestExternalPolicy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rnd := rand.New(rand.NewPCG(1, 2))
	r := &simulate.Requests{}
	for range 50 {
		r.Size = append(r.Size, 1+rnd.Int64N(100))
	}
	for range 2000 {
		r.Layer = append(r.Layer, uint32(min(rnd.IntN(50), rnd.IntN(50))))
	}
	config := func(policy string) simulate.CacheConfig {
		return simulate.CacheConfig{Policy: policy, SSDPolicy: "lru", RAM: 600, Shards: 2, By: simulate.ByDigest}
	}
	got, err := simulate.Caches(ctx, r, []simulate.CacheConfig{config("fifo"), config(program(t, fifo))}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].RAMEvictions == 0 || got[0].Hits == 0 {
		t.Errorf("nothing is evicted, or nothing is hit: %+v", got[0])
	}
	got[1].Config.Policy = "fifo"
	if diff := cmp.Diff(got[0], got[1]); diff != "" {
		t.Errorf("(-fifo +program):\n%s", diff)
	}
}

// TestExternalPolicyFails checks that a simulation fails if its program does.
func TestExternalPolicyFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r := &simulate.Requests{Size: []int64{60, 60}, Layer: []uint32{0, 1, 0, 1}}
	for _, c := range []struct{ script, want string }{
		{"echo oh >&2; exit 1", "oh"},
		{"while read -r l; do case $l in *evict*) echo 99 ;; esac; done", "layer 99, which is not in the cache"},
		{"while read -r l; do case $l in *evict*) echo first ;; esac; done", `"first"`},
	} {
		_, err := simulate.Caches(ctx, r, []simulate.CacheConfig{{Policy: program(t, c.script), SSDPolicy: "lru", RAM: 100}}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: the error is %v", c.script, err)
		}
	}
	if _, err := simulate.Caches(ctx, r, []simulate.CacheConfig{{Policy: "exec:/nothing/there", SSDPolicy: "lru", RAM: 100}}, nil); err == nil {
		t.Error("a program that is not there is a policy")
	}
	if _, err := simulate.Caches(ctx, r, []simulate.CacheConfig{{Policy: "lru", SSDPolicy: "exec:x", RAM: 100, SSD: 100}}, nil); err == nil {
		t.Error("a program decides on an SSD")
	}
}
