// Package fsdiff runs the same random operations on two directory trees and compares what
// the kernel answers: results, error numbers, contents and metadata. It knows nothing of
// the product: one of the trees is an ordinary one, the other claims to be like it.
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

// Options of Run. The zero value runs nothing.
type Options struct {
	// Seed decides the operations.
	Seed uint64
	// Ops is how many operations are run.
	Ops int
	// Without names operations that are left out.
	Without []string
}

// Difference is an operation that two trees answer differently, with those before it that
// had to do with the same names.
type Difference struct {
	Seed uint64
	// Op counts from 0.
	Op   int
	What string
	A, B string
	Past []string
}

// Error implements error.
func (d *Difference) Error() string {
	return fmt.Sprintf("operation %d of seed %d, %s:\n\ta %s\n\tb %s\nbefore it:\n\t%s", d.Op, d.Seed, d.What, d.A, d.B, strings.Join(d.Past, "\n\t"))
}

// remembered is how many operations a Difference lists.
const remembered = 25

// tree is one of the two. Paths are relative to root, which is open as top.
type tree struct {
	root    string
	top     int
	fds     [slots]int
	watch   int // of inotify
	scratch []byte
}

// slots is how many files are open at once.
const slots = 4

// joined makes one list of two.
func joined(a, b string) string {
	all := slices.DeleteFunc(strings.Split(a+", "+b, ", "), func(line string) bool { return line == "" })
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Run runs operations on the trees at a and b, which must be equal, and returns the first
// *Difference, or what else went wrong. It needs root, since some operations are those of
// another user.
func Run(a, b string, o Options) error {
	runtime.LockOSThread() // operations of other users set the thread's
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
			// What has lost its last name ends when the kernel lets go of it.
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
			if err := same(a, b, "mtime", "content"); err != nil { // contents would be fetched by that
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

// same compares the trees as a whole, but for some aspects; see treecmp.
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
			_ = unix.Close(fd) // what it says was compared where an operation closed it
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

// path is where something of the tree is for calls that know no directory.
func (t *tree) path(rel string) string { return filepath.Join(t.root, rel) }
