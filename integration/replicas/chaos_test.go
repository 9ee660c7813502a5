package replicas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/replicas/faults"
)

// chaos breaks one thing after another.
type chaos struct {
	b    *bed
	t    *testing.T
	rng  *rand.Rand
	seen map[string]int
	// short makes all faults short, so that a short run has many.
	short bool
}

// between returns a random time.
func (c *chaos) between(from, to time.Duration) time.Duration {
	return from + time.Duration(c.rng.Int64N(int64(to-from)))
}

// wait waits, and returns false if ctx has ended.
func (c *chaos) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// run breaks things until ctx ends, and then repairs everything.
func (c *chaos) run(ctx context.Context) {
	c.seen = map[string]int{}
	kinds := []struct {
		name string
		do   func(context.Context)
	}{
		{"kill -9 of a replica", c.kill}, {"kill -9 of a replica", c.kill}, {"kill -9 of two replicas", c.killTwo}, {"restart of a replica", c.restart},
		{"restart of PostgreSQL", c.restartPostgres}, {"kill -9 of PostgreSQL", c.killPostgres},
		{"failover of PostgreSQL", c.failover}, {"failover of PostgreSQL", c.failover},
		{"store busy", c.storeBusy}, {"store cuts off", c.storeCuts}, {"store slow", c.storeSlow}, {"store away", c.storeAway},
		{"partition from PostgreSQL", c.partitionDatabase}, {"partition from the store", c.partitionStore},
		{"partition from peers", c.partitionPeers}, {"partition from everything", c.partitionAll},
		{"network of a replica down", c.networkDown},
	}
	// Each kind comes once in random order, then again, so that even a short run meets many kinds.
	for order := c.rng.Perm(len(kinds)); c.wait(ctx, c.between(500*time.Millisecond, 2*time.Second)); order = order[1:] {
		k := kinds[order[0]]
		c.seen[k.name]++
		c.t.Logf("%s: %s", time.Now().Format("15:04:05.000"), k.name)
		k.do(ctx)
		if len(order) == 1 {
			order = append(order, c.rng.Perm(len(kinds))...)
		}
	}
	c.mend()
}

// mend ends all faults.
func (c *chaos) mend() {
	c.b.store.Set(faults.Trouble{})
	for _, r := range c.b.replicas {
		for _, l := range r.links() {
			l.Set(faults.Passing)
		}
		c.cut(r, false)
		r.setDown(false)
	}
}

func (c *chaos) summary() string {
	var parts []string
	for name, n := range c.seen {
		parts = append(parts, fmt.Sprintf("%d x %s", n, name))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func (c *chaos) one() *replica { return c.b.replicas[c.rng.IntN(len(c.b.replicas))] }

// kill kills a replica. Its service manager starts it again, at once or later.
func (c *chaos) kill(ctx context.Context) { c.killReplica(ctx, c.one()) }

func (c *chaos) killReplica(ctx context.Context, r *replica) {
	r.setDown(true)
	r.signal(syscall.SIGKILL)
	c.wait(ctx, c.between(0, 2*time.Second))
	r.setDown(false)
}

func (c *chaos) killTwo(ctx context.Context) {
	two := shuffled(c.rng, c.b.replicas)[:2]
	for _, r := range two {
		r.setDown(true)
		r.signal(syscall.SIGKILL)
	}
	c.wait(ctx, c.between(0, 2*time.Second))
	for _, r := range two {
		r.setDown(false)
	}
}

// restart ends a replica as an upgrade does: the replica finishes what it is doing.
func (c *chaos) restart(context.Context) { c.one().signal(syscall.SIGTERM) }

func (c *chaos) restartPostgres(ctx context.Context) {
	c.b.postgres.Signal(syscall.SIGINT) // requests a fast shutdown
	c.wait(ctx, c.between(0, 2*time.Second))
	c.b.postgres.Restart()
}

func (c *chaos) killPostgres(ctx context.Context) {
	c.b.postgres.Kill()
	c.wait(ctx, c.between(0, 2*time.Second))
	c.b.postgres.Start(c.b.postgres.Ready)
}

// failover kills the server for good. Its standby takes its place, and the killed server becomes
// the new standby with the data of the other.
func (c *chaos) failover(ctx context.Context) {
	c.b.postgres.Kill()
	c.wait(ctx, c.between(0, 2*time.Second))
	c.b.standby.Promote(c.t)
	c.b.postgres, c.b.standby = c.b.standby, c.b.postgres
	c.wait(ctx, c.between(0, 2*time.Second))
	c.b.standby.Follow(c.t, c.b.postgres)
}

// trouble makes the store misbehave for a while.
func (c *chaos) trouble(ctx context.Context, t faults.Trouble) {
	c.b.store.Set(t)
	c.wait(ctx, c.between(time.Second, 5*time.Second))
	c.b.store.Set(faults.Trouble{})
}

func (c *chaos) storeBusy(ctx context.Context) {
	c.trouble(ctx, faults.Trouble{SlowDown: 0.2 + 0.8*c.rng.Float64()})
}

func (c *chaos) storeCuts(ctx context.Context) {
	c.trouble(ctx, faults.Trouble{Cut: 0.3, Lost: 0.1, Unanswered: 0.2})
}

func (c *chaos) storeSlow(ctx context.Context) {
	c.trouble(ctx, faults.Trouble{Slow: 0.5, Delay: 2 * time.Second, SlowDown: 0.05})
}

func (c *chaos) storeAway(ctx context.Context) { c.trouble(ctx, faults.Trouble{Lost: 1}) }

// partition breaks links for a while, in one of two ways.
func (c *chaos) partition(ctx context.Context, links ...*faults.Link) {
	state := faults.Silent
	if c.rng.IntN(3) == 0 {
		state = faults.Broken
	}
	for _, l := range links {
		l.Set(state)
	}
	c.wait(ctx, c.partitioned())
	for _, l := range links {
		l.Set(faults.Passing)
	}
}

// partitioned returns how long a partition lasts.
func (c *chaos) partitioned() time.Duration {
	longest := 6 * time.Second
	if c.rng.IntN(5) == 0 { // longer than anybody waits before reporting an error
		longest = 40 * time.Second
	}
	if c.short {
		longest = 5 * time.Second
	}
	return c.between(time.Second, longest)
}

// networkDown takes the link of a replica's namespace down. The replica is then partitioned from
// everything, including its clients, and its packets are lost.
func (c *chaos) networkDown(ctx context.Context) {
	r := c.one()
	c.cut(r, true)
	c.wait(ctx, c.partitioned())
	c.cut(r, false)
}

func (c *chaos) cut(r *replica, cut bool) {
	if err := r.node.Cut(context.Background(), cut); err != nil {
		c.t.Error(err)
	}
}

func (c *chaos) partitionDatabase(ctx context.Context) { c.partition(ctx, c.one().database...) }
func (c *chaos) partitionStore(ctx context.Context)    { c.partition(ctx, c.one().store) }
func (c *chaos) partitionPeers(ctx context.Context)    { c.partition(ctx, c.one().peer) }

func (c *chaos) partitionAll(ctx context.Context) {
	c.partition(ctx, c.one().links()...)
}
