package service

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestOneEntryForEachCaller checks that new callers evict other entries, but never one that
// somebody is about to fill.
func TestOneEntryForEachCaller(t *testing.T) {
	var k credentials
	now := time.Now()
	for round := range 3000 {
		var wg sync.WaitGroup
		var filled [4]atomic.Int32
		begin := make(chan struct{})
		for n := range 12 {
			who := caller{fmt.Sprint("node", round, n/3), false}
			wg.Go(func() {
				<-begin
				e := k.lock(who, now)
				defer e.mu.Unlock()
				if e.renew.IsZero() {
					e.renew = now.Add(time.Hour)
					filled[n/3].Add(1)
				}
			})
		}
		close(begin)
		wg.Wait()
		for n := range filled {
			if got := filled[n].Load(); got != 1 {
				t.Fatalf("round %d: %d entries of one caller were filled", round, got)
			}
		}
		if round%100 == 99 {
			now = now.Add(2 * time.Hour)
		}
	}
}
