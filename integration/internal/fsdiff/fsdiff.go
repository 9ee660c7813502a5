// Package fsdiff runs the same random operations on two directory trees and compares the kernel's
// answers: results, error numbers, contents and metadata. It knows nothing of the product: one tree
// is an ordinary one, and the other claims to behave like it.
package fsdiff

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/treecmp"
)

// Options are the options of Run. The zero value runs nothing.
type Options struct {
	// Seed determines the operations.
	Seed uint64
	// Ops is the number of operations to run.
	Ops int
	// Without lists the names of operations to leave out.
	Without []string
}

// Difference is an operation that the two trees answer differently, with the earlier operations on
// the same names.
type Difference struct {
	Seed uint64
	// Op is the operation's index, from 0.
	Op   int
	What string
	A, B string
	Past []string
}

// Error implements error.
func (d *Difference) Error() string {
	return fmt.Sprintf("operation %d of seed %d, %s:\n\ta %s\n\tb %s\nbefore it:\n\t%s", d.Op, d.Seed, d.What, d.A, d.B, strings.Join(d.Past, "\n\t"))
}

// remembered is the maximum number of operations that a Difference lists.
const remembered = 25

// tree is one of the two trees. Paths are relative to root, which is open as top.
type tree struct {
	root    string
	top     int
	fds     [slots]int
	watch   int // inotify descriptor
	scratch []byte
}

// slots is the number of files that are open at the same time.
const slots = 4

// joined joins two lists into one.
func joined(a, b string) string {
	all := slices.DeleteFunc(strings.Split(a+", "+b, ", "), func(line string) bool { return line == "" })
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Run runs operations on the trees at a and b, which must be equal. It returns the first
// *Difference, or any other error. It needs root, because some operations run as another user.
func Run(a, b string, o Options) error {
	runtime.LockOSThread() // operations of other users change the thread's ids
	defer runtime.UnlockOSThread()
	var trees [2]*tree
	for i, root := range []string{a, b} {
		t, err := open(root)
		if err != nil {
			return err
		}
		defer t.close()
		trees[i] = t
	}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	ops := slices.DeleteFunc(operations(), func(op operation) bool { return slices.Contains(o.Without, op.name) })
	total := 0
	for _, op := range ops {
		total += op.weight
	}
	var past []string
	for i := range o.Ops {
		op := choose(rng, ops, total)
		what, run := op.make(rng)
		what = op.name + " " + what
		answers := [2]string{run(trees[0]), run(trees[1])}
		if answers[0] != answers[1] && op.name == "events" {
			// A file without a name ends when the kernel releases it.
			time.Sleep(100 * time.Millisecond)
			for j := range trees {
				answers[j] = joined(answers[j], run(trees[j]))
			}
		}
		if answers[0] != answers[1] {
			return &Difference{Seed: o.Seed, Op: i, What: what, A: answers[0], B: answers[1], Past: past}
		}
		past = append(past, what+": "+brief(answers[0]))
		if op.many {
			if err := same(a, b, "mtime", "content"); err != nil { // comparing contents would fetch them
				return &Difference{Seed: o.Seed, Op: i, What: what, A: err.Error(), Past: past}
			}
		}
		past = past[max(0, len(past)-remembered):]
	}
	for _, t := range trees {
		t.closeAll()
	}
	return same(a, b, "mtime")
}

func brief(s string) string {
	if len(s) > 120 {
		return s[:120] + "..."
	}
	return s
}

func choose(rng *rand.Rand, ops []operation, total int) operation {
	n := rng.IntN(total)
	for _, op := range ops {
		if n -= op.weight; n < 0 {
			return op
		}
	}
	panic("fsdiff: no operation")
}

// same compares the whole trees, without the aspects in but; see treecmp.
func same(a, b string, but ...string) error {
	lines, err := treecmp.Compare(a, b, &treecmp.Options{Ignore: func(_, aspect string) bool { return slices.Contains(but, aspect) }})
	if err == nil && len(lines) > 0 {
		err = fmt.Errorf("the trees differ:\n%s", strings.Join(lines, "\n"))
	}
	return err
}

func open(root string) (*tree, error) {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	// Direct reads and writes need aligned memory.
	scratch, err := unix.Mmap(-1, 0, maxIO, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, top: top, watch: watch, scratch: scratch}
	for i := range t.fds {
		t.fds[i] = -1
	}
	return t, nil
}

// closeAll closes the files that operations left open.
func (t *tree) closeAll() {
	for i, fd := range t.fds {
		if fd >= 0 {
			_ = unix.Close(fd) // an operation that closes a file compares the result
			t.fds[i] = -1
		}
	}
}

func (t *tree) close() {
	t.closeAll()
	_ = unix.Close(t.top)
	_ = unix.Close(t.watch)
	_ = unix.Munmap(t.scratch)
}

// path returns the absolute path of something in the tree, for calls that take no directory.
func (t *tree) path(rel string) string { return filepath.Join(t.root, rel) }
