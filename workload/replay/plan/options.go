package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace/store"
)

// Source is a trace to read. [store.Store] is one.
type Source interface {
	// Scan hands out the requests of a zone in the order of their time. A batch is valid until
	// fn returns. Two scans with the same query hand out the same requests.
	Scan(ctx context.Context, q store.Query, fn func(*store.Batch) error) error
	// Name returns what a symbol stands for.
	Name(t store.Table, sym store.Symbol) string
}

var _ Source = (*store.Store)(nil)

// Policy says which of several registries a request goes to.
type Policy string

// These are the policies.
const (
	// ByRandom spreads requests evenly.
	ByRandom Policy = "random"
	// ByDigest sends all requests for one name to one registry.
	ByDigest Policy = "digest"
	// ByHost follows the server that answered in the trace.
	ByHost Policy = "host"
)

// Options say what is replayed. The zero value is everything of the zone at L0 and
// at the recorded speed.
type Options struct {
	Level Level
	// Zone is the zone of the store.
	Zone string
	// From and To bound the recorded times, half open; zero means unbounded.
	From, To time.Time
	// MaxRequests and MaxTime end the plan after so many requests of the trace, or so
	// much recorded time; 0 means never.
	MaxRequests int64
	MaxTime     time.Duration
	// Speed divides the times between tasks; 0 means 1.
	Speed float64
	// MaxGap shortens times between tasks in which nothing happens, after Speed; 0
	// means none is shortened.
	MaxGap time.Duration
	// Rate is the largest number of tasks a second. Tasks beyond it are sent later. 0
	// means no bound.
	Rate float64
	// Targets is the number of registries, 0 means 1; TargetPolicy chooses among them
	// and defaults to ByRandom.
	Targets      int
	TargetPolicy Policy
	// RepoPrefix is put before all repository names, such as "replay/".
	RepoPrefix string
	// Maker makes the layers.
	Maker content.Maker
	// SizeScale multiplies the sizes of blobs; 0 means 1. MaxSize bounds them, in bytes;
	// 0 means no bound.
	SizeScale float64
	MaxSize   int64
	// SessionGap is how long a client may pause within a pull or push, 0 means one
	// minute: requests of one client and repository that are closer belong together.
	SessionGap time.Duration
	// KeepGaps keeps the times of the steps within a pull, whatever Speed is: no step
	// starts earlier after the pull's beginning than in the trace. Otherwise a step
	// starts when its turn comes.
	KeepGaps bool
	// LayersAtOnce is how many layers a session transfers at once. 0 means 3, as Docker
	// does.
	LayersAtOnce int
	// Deletes replays DELETE requests. Otherwise they are left out.
	Deletes bool
	// Hashers is how many goroutines compute digests; 0 means one for each processor.
	Hashers int
}

// These sizes are used if the trace has none.
const (
	unknownSize = 4096
	// maxSession bounds the length of a session. Its tasks wait in memory until it has
	// ended.
	maxSession = 10 * time.Minute
	// maxLayers bounds the layers of a manifest: overlayfs mounts no more.
	maxLayers = 127
	// maxContent bounds a blob, in bytes. A larger size is a mistake in the log, and
	// computing its digest would take too long.
	maxContent = 1 << 40
)

// Defaults returns the options with defaults filled in, or an error if they are invalid.
func (o Options) Defaults() (Options, error) {
	o.Speed = cmp.Or(o.Speed, 1)
	o.Targets = cmp.Or(o.Targets, 1)
	o.TargetPolicy = cmp.Or(o.TargetPolicy, ByRandom)
	o.SizeScale = cmp.Or(o.SizeScale, 1)
	o.SessionGap = cmp.Or(o.SessionGap, time.Minute)
	o.LayersAtOnce = cmp.Or(o.LayersAtOnce, 3)
	o.Hashers = cmp.Or(o.Hashers, runtime.GOMAXPROCS(0))
	switch {
	case !(o.Speed > 0) || !(o.SizeScale > 0) || !(o.Rate >= 0) || math.IsInf(o.Speed+o.SizeScale+o.Rate, 1):
		return o, errors.New("speed, rate and scale must be positive, and not infinite")
	case o.MaxGap < 0 || o.MaxTime < 0 || o.SessionGap < 0 || o.MaxSize < 0 || o.MaxRequests < 0:
		return o, errors.New("times, sizes and limits must not be negative")
	case o.Targets < 1 || o.Targets > 255:
		return o, fmt.Errorf("%d targets: between 1 and 255 are possible", o.Targets)
	case o.LayersAtOnce < 1 || o.LayersAtOnce > 255:
		return o, fmt.Errorf("%d layers at once: between 1 and 255 are possible", o.LayersAtOnce)
	case o.Level > L2:
		return o, fmt.Errorf("unknown level %d", o.Level)
	case o.TargetPolicy != ByRandom && o.TargetPolicy != ByDigest && o.TargetPolicy != ByHost:
		return o, fmt.Errorf("unknown policy %q: use random, digest or host", o.TargetPolicy)
	case !oci.ValidName(o.RepoPrefix + l0Repo):
		return o, fmt.Errorf("%q cannot stand before the name of a repository: use lower case, such as replay/", o.RepoPrefix)
	}
	return o, o.Maker.Check()
}

// query returns the part of the store that is replayed.
func (o *Options) query() store.Query {
	return store.Query{Zone: o.Zone, From: o.From, To: o.To}
}

// UnknownSize returns the size, in bytes, of a blob whose size the trace lacks.
func (o Options) UnknownSize() int64 {
	o.SizeScale = cmp.Or(o.SizeScale, 1)
	return o.size(0)
}

// size returns the size to make for a recorded size of n bytes.
func (o *Options) size(n int64) int64 {
	if n <= 0 {
		n = unknownSize
	}
	if o.SizeScale != 1 {
		n = max(1, int64(min(float64(n)*o.SizeScale, 1<<62)))
	}
	if o.MaxSize > 0 {
		n = min(n, o.MaxSize)
	}
	return n
}
