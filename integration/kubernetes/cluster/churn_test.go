package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
)

// watchers is how many pods read their files all the time while jobs come and go.
const watchers = 6

// TestChurn runs jobs on three nodes for some minutes, while parts of the nodes are killed and images
// are removed and pulled again. No pod may fail, other pods must read on, and neither memory nor
// files nor mounts may grow. SLIPWAY_KUBERNETES_CHURN is the number of minutes, default 3.
func TestChurn(t *testing.T) {
	c := newCluster(t, onDemand, ctrnode.Gear, ctrnode.Gear, ctrnode.Gear)
	c.mark()
	for tag, seed := range map[string]byte{"1": 1, "2": 2, "3": 3} {
		c.push("public/app:"+tag, imagetest.Summed(t, seed, files, fileBytes, largeBytes))
	}
	c.namespace("open", "")
	c.apply(fmt.Sprintf(watcher, watchers))
	c.ready("open")

	minutes := number(t, "SLIPWAY_KUBERNETES_CHURN", 3)
	end := time.Now().Add(time.Duration(minutes) * time.Minute)
	var seen []usage
	rounds := 0
	// Each part is killed at least three times, however slow the machine is.
	for ; rounds < 9 || time.Now().Before(end); rounds++ {
		c.job(rounds, fmt.Sprint(2+rounds/3%2))
		if rounds%3 == 2 {
			seen = append(seen, c.usage())
		}
	}
	c.read()
	t.Logf("%d jobs of ten pods in %d minutes; %s", rounds, minutes, seen)
	steady(t, seen)
	c.tidy(seen)
	c.leaks("open")
}

// usage is what the agent of each node takes while no job runs and the images of jobs are removed.
type usage struct {
	memory, files []int64
}

func (u usage) String() string {
	var b strings.Builder
	for i := range u.memory {
		fmt.Fprintf(&b, " %d MB %d files", u.memory[i]/1e6, u.files[i])
	}
	return b.String()
}

// usage removes the images of jobs and returns what is left.
func (c *cluster) usage() (u usage) {
	c.t.Helper()
	for _, n := range c.nodes {
		c.check(n.RemoveImages(c.t.Context(), "/pause:", "/app:1"))
		c.check(n.Collect(c.t.Context()))
		memory, err := n.AgentRSS()
		c.check(err)
		count, err := n.AgentFiles()
		c.check(err)
		u.memory, u.files = append(u.memory, memory), append(u.files, int64(count))
	}
	return u
}

// steady compares the agents' memory at the end of a series with the first half, of which the first
// value is left out.
func steady(t *testing.T, seen []usage) {
	t.Helper()
	last := seen[len(seen)-1]
	for i := range last.memory {
		most := int64(0)
		for _, u := range seen[1 : 1+len(seen)/2] {
			most = max(most, u.memory[i])
		}
		// The heap of a program with a collector is not the same at any two moments.
		if last.memory[i] > most*5/4+16*mib {
			t.Errorf("the agent of node %d has %d bytes of memory; in the first half of the time it had %d at most", i, last.memory[i], most)
		}
	}
}

// tidy waits until the agents of all nodes, which have the same images, have as few files as any of
// them has had. A kubelet removes what ended containers have left only when it has run for some
// minutes.
func (c *cluster) tidy(seen []usage) {
	c.t.Helper()
	least := slices.Min(seen[0].files)
	for _, u := range seen {
		least = min(least, slices.Min(u.files))
	}
	for end := time.Now().Add(2 * limit); ; time.Sleep(time.Second) {
		u := c.usage()
		if slices.Max(u.files) <= least+least/20 {
			c.t.Logf("when all pods of jobs were gone:%s", u)
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("when all pods of jobs are gone, there is%s; a node has had %d files", u, least)
		}
	}
}
