package faultfs

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Op is a set of file system operations.
type Op uint

// These are the operations that a rule can strike.
const (
	Read Op = 1 << iota
	Write
	Sync     // fsync and fdatasync of a file
	SyncDir  // fsync of a directory
	Flush    // the close of a descriptor
	Create   // of a file or directory
	Rename   // matched by either path
	Link     // matched by the new path
	Unlink   // of a file or directory
	Allocate // fallocate
	Truncate
)

// Space is the set of operations that need space on the disk and fail without it.
const Space = Write | Create | Link | Allocate

// Rule says which operations fail, and how. The first rule in force that strikes an operation
// decides.
//
// No rule strikes SQLite's shared memory ("-shm"): it is RAM that only happens to have a name.
type Rule struct {
	// Ops are the operations that the rule applies to.
	Ops Op
	// Path matches the path below the root of the file system, without a leading slash; nil matches
	// all paths.
	Path *regexp.Regexp
	// After is the number of matching operations that pass before the rule first strikes.
	After int
	// Times is how often the rule strikes; 0 means without end.
	Times int
	// P is the probability that the rule strikes; 0 means 1. Seed seeds the random choices.
	P    float64
	Seed uint64

	// Delay is how long the operation waits before anything else happens.
	Delay time.Duration
	// Err is what the operation returns if it is not 0.
	Err syscall.Errno
	// Done carries the operation out although it returns Err. It is ignored
	// for Read and Sync.
	Done bool
	// Short makes a write store only half of its bytes. The write must be longer than a single
	// byte.
	Short bool
}

// Injection is a rule in force.
type Injection struct {
	Rule
	f *FS

	mu      sync.Mutex
	dice    *rand.Rand
	matched int
	strikes int
}

// Inject puts a rule in force, until it is lifted.
func (f *FS) Inject(r Rule) *Injection {
	i := &Injection{Rule: r, f: f, dice: rand.New(rand.NewPCG(r.Seed, 0))}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules[:len(f.rules):len(f.rules)], i)
	return i
}

// Lift ends the rule. Operations that it already delays keep waiting.
func (i *Injection) Lift() {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	var left []*Injection
	for _, x := range i.f.rules {
		if x != i {
			left = append(left, x)
		}
	}
	i.f.rules = left
}

// Strikes returns how many operations the rule has struck.
func (i *Injection) Strikes() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.strikes
}

// strike reports whether the rule strikes an operation on the paths.
func (i *Injection) strike(op Op, paths []string) bool {
	if i.Ops&op == 0 || !i.matches(paths) {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.matched++
	if i.matched <= i.After || i.Times > 0 && i.strikes >= i.Times || i.P > 0 && i.dice.Float64() >= i.P {
		return false
	}
	i.strikes++
	return true
}

func (i *Injection) matches(paths []string) bool {
	for _, p := range paths {
		if !strings.HasSuffix(p, "-shm") && (i.Path == nil || i.Path.MatchString(p)) {
			return true
		}
	}
	return false
}

// fault is what happens to one operation. The zero value does nothing.
type fault struct {
	err   syscall.Errno
	done  bool
	short bool
}

// stops reports whether the operation is not carried out.
func (x fault) stops() bool { return x.err != 0 && !x.done }

// or returns the fault's error, or, without a fault, the operation's own result.
func (x fault) or(errno syscall.Errno) syscall.Errno {
	if x.err != 0 {
		return x.err
	}
	return errno
}

// meet returns the fault that an operation meets, after its delay. It calls paths only if there are
// rules.
func (f *FS) meet(op Op, paths func() []string) fault {
	f.mu.Lock()
	rules := f.rules // never changed in place
	f.mu.Unlock()
	if len(rules) == 0 {
		return fault{}
	}
	names := paths()
	for _, i := range rules {
		if !i.strike(op, names) {
			continue
		}
		if i.Delay > 0 {
			select {
			case <-time.After(i.Delay):
			case <-f.closed:
			}
		}
		return fault{err: i.Err, done: i.Done, short: i.Short}
	}
	return fault{}
}
