package tier_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/registry/cache/tier"
)

// killDir is the environment variable that makes this binary the process to be killed.
const killDir = "SLIPWAY_TEST_TIER_KILL"

func killOptions(dir string) *tier.Options {
	return &tier.Options{RAMBytes: 300_000, SSDBytes: 3 << 20, LargeObject: 30_000, Dir: dir, WriteThrough: true}
}

// killKeys returns objects that overflow both tiers.
func killKeys() []string {
	var keys []string
	for i := range uint64(200) {
		keys = append(keys, madeKey(int64(1+i*i*3), i))
	}
	return keys
}

// fillUntilKilled fills and serves, and reports it.
func fillUntilKilled(dir string) {
	s, err := tier.New(newMade(), killOptions(dir))
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	keys := killKeys()
	for range 4 {
		go func() {
			for i := 0; ; i++ {
				key := keys[rand.IntN(len(keys))]
				err := get(context.Background(), s, key, 0, -1)
				if err == nil && i%10 == 0 {
					err = s.Delete(context.Background(), key)
				}
				if err != nil {
					fmt.Println("error:", err)
					os.Exit(1)
				}
				if i == 100 {
					fmt.Println("ready")
				}
			}
		}()
	}
	select {}
}

// TestKilled kills the process at any moment. The next process must serve right bytes and know what
// was there.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	var found int
	for round := range 6 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), killDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err == nil && strings.TrimSpace(line) == "ready" {
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // any moment will do
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if strings.TrimSpace(line) != "ready" {
			t.Fatalf("round %d: the process said %q, %v", round, line, err)
		}
		if round%2 == 1 {
			continue // the next one is killed again
		}
		m := newMade()
		s, err := tier.New(m, killOptions(dir))
		if err != nil {
			t.Fatal(err)
		}
		found += s.Status().SSD.Entries
		var wg sync.WaitGroup
		for _, key := range killKeys() {
			wg.Go(func() {
				for range 2 {
					if err := get(t.Context(), s, key, 0, -1); err != nil {
						t.Errorf("round %d: %v", round, err)
					}
				}
			})
		}
		wg.Wait()
		if st := idle(t, s); st.Damaged != 0 {
			t.Errorf("round %d: %d files were damaged by a kill", round, st.Damaged)
		}
		limits(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if found == 0 {
		t.Error("nothing was ever found after a kill")
	}
}
