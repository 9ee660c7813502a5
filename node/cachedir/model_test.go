package cachedir_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// clock advances by a second at each call and starts an hour ahead. The real access times of files
// are then never newer.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(time.Second)
	return c.at
}

// TestBudgetModel compares the files that are there with a model of the budget.
func TestBudgetModel(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	// Each check makes and removes 256 directories.
	must(t, flag.Set("rapid.checks", "30"))
	for _, policy := range []cachedir.Policy{cachedir.LRU, cachedir.FIFO} {
		name := map[cachedir.Policy]string{cachedir.LRU: "LRU", cachedir.FIFO: "FIFO"}[policy]
		t.Run(name, func(t *testing.T) {
			root := ramDir(t, 64)
			rapid.Check(t, func(rt *rapid.T) { budgetModel(t, rt, root, policy) })
		})
	}
}

// model is the budget in its simplest form. order holds the existing files, the first to be evicted
// first.
type model struct {
	policy cachedir.Policy
	max    int64
	size   map[gear.Name]int64
	order  []gear.Name
	leases map[string][]gear.Name
	// came is the file that has just arrived.
	came gear.Name
}

func (m *model) used() (n int64) {
	for _, f := range m.order {
		n += m.size[f]
	}
	return n
}

func (m *model) leased(f gear.Name) bool {
	for _, l := range m.leases {
		if slices.Contains(l, f) {
			return true
		}
	}
	return false
}

func (m *model) use(f gear.Name) {
	if i := slices.Index(m.order, f); i >= 0 && m.policy == cachedir.LRU {
		m.order = append(slices.Delete(m.order, i, i+1), f)
	}
}

// trim frees space for n more bytes. The file that has just arrived stays.
func (m *model) trim(n int64) {
	for _, leased := range []bool{false, true} {
		for i := 0; i < len(m.order) && m.used()+n > m.max; {
			if f := m.order[i]; f != m.came && (leased || !m.leased(f)) {
				m.order = slices.Delete(m.order, i, i+1)
			} else {
				i++
			}
		}
	}
}

func (m *model) put(f gear.Name) {
	n := (m.size[f] + 4095) / 4096 * 4096
	m.trim(n) // at its beginning
	if !slices.Contains(m.order, f) {
		m.order = append(m.order, f)
	}
	m.came = f
	m.trim(0)
	m.came = gear.Name{}
}

func budgetModel(t *testing.T, rt *rapid.T, root string, policy cachedir.Policy) {
	dir, err := os.MkdirTemp(root, "cachedir")
	must(t, err)
	defer os.RemoveAll(dir)
	c := &clock{at: time.Now().Add(time.Hour)}
	const budget = 256 << 10
	o := &cachedir.Options{MaxBytes: budget, Policy: policy, SyncEvery: -1, Clock: c.now}
	d, err := cachedir.Open(dir, o)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	m := &model{policy: policy, max: budget, size: map[gear.Name]int64{}, leases: map[string][]gear.Name{}}
	var files []gear.File
	var bodies [][]byte
	for i := range 24 {
		b := content(uint64(i), 4096*(1+i*i%40))
		files, bodies = append(files, fileOf(b)), append(bodies, b)
		m.size[files[i].Name] = int64(len(b))
	}
	pick := rapid.IntRange(0, len(files)-1)
	add := func(rt *rapid.T) {
		i := pick.Draw(rt, "file")
		if d.Has(files[i].Name) {
			return
		}
		must(t, write(d, files[i], bodies[i]))
		m.put(files[i].Name)
	}
	rt.Repeat(map[string]func(*rapid.T){
		"put": add, "put another": add, "put a third": add,
		"open": func(rt *rapid.T) {
			i := pick.Draw(rt, "file")
			f, err := d.OpenFile(files[i].Name)
			if (err == nil) != slices.Contains(m.order, files[i].Name) || err != nil && !errors.Is(err, fs.ErrNotExist) {
				rt.Fatalf("open file %d: %v", i, err)
			}
			if err == nil {
				must(t, f.Close())
			}
			m.use(files[i].Name)
		},
		"touch": func(rt *rapid.T) {
			i := pick.Draw(rt, "file")
			d.Touch(files[i].Name)
			m.use(files[i].Name)
		},
		"lease": func(rt *rapid.T) {
			id := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "id")
			i := pick.Draw(rt, "from")
			var l []gear.Name
			for _, f := range files[i:min(i+8, len(files))] {
				l = append(l, f.Name)
			}
			d.Lease(id, l)
			m.leases[id] = l
		},
		"unlease": func(rt *rapid.T) {
			id := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "id")
			d.Unlease(id)
			delete(m.leases, id)
		},
		"": func(rt *rapid.T) {
			books, total := d.Counted()
			for i, f := range files {
				if _, ok := books[f.Name]; ok != slices.Contains(m.order, f.Name) {
					rt.Fatalf("file %d there: %v; model has %d files of %d bytes", i, ok, len(m.order), m.used())
				}
			}
			if total > budget || total != m.used() {
				rt.Fatalf("%d bytes counted, %d in the model, budget %d", total, m.used(), budget)
			}
			if n := onDisk(d, files); n != total {
				rt.Fatalf("%d bytes counted, %d on disk", total, n)
			}
		},
	})
}

// ramDir returns a directory in memory, where many flushes cost nothing, if one can be mounted.
func ramDir(t *testing.T, mib int64) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)))
		t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	}
	return dir
}

// onDisk returns the space of those files that exist.
func onDisk(d *cachedir.Dir, files []gear.File) (n int64) {
	for _, f := range files {
		var st unix.Stat_t
		if unix.Lstat(pathOf(d, f), &st) == nil {
			n += st.Blocks * 512
		}
	}
	return n
}

// TestEvictOpen checks files that are open or mapped when space is needed. They stay, because their
// space would not be freed. A file that is deleted nevertheless counts until its last user is gone,
// and nobody is disturbed.
func TestEvictOpen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("looking at unlinked files needs root")
	}
	c := &clock{at: time.Now().Add(time.Hour)}
	d := open(t, t.TempDir(), &cachedir.Options{MaxBytes: 1 << 20, Clock: c.now})
	first := content(1, 512<<10)
	f := put(t, d, first)
	r, err := d.OpenFile(f.Name)
	must(t, err)
	mapped, err := unix.Mmap(int(r.Fd()), 0, len(first), unix.PROT_READ, unix.MAP_SHARED)
	must(t, err, r.Close())
	second := put(t, d, content(2, 300<<10))
	third := put(t, d, content(3, 300<<10)) // does not fit beside both
	if !d.Has(f.Name) || d.Has(second.Name) || !d.Has(third.Name) {
		t.Errorf("mapped, closed, new: %v, %v, %v", d.Has(f.Name), d.Has(second.Name), d.Has(third.Name))
	}
	d.Damaged(f.Name, "the test says so")
	if s := d.Stats(); s.LateBytes != 512<<10 || s.Bytes != 300<<10 {
		t.Errorf("while it is mapped: %+v", s)
	}
	put(t, d, content(4, 300<<10))
	if s := d.Stats(); s.Files != 1 || s.Bytes+s.LateBytes > 1<<20 {
		t.Errorf("beside a mapped one: %+v", s)
	}
	if fileOf(mapped).Name != f.Name {
		t.Error("the mapping changed")
	}
	must(t, unix.Munmap(mapped))
	deadline := time.Now().Add(10 * time.Second)
	for d.Stats().LateBytes != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("its space never came back: %+v", d.Stats())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestEvictPartial evicts a partial file that nobody has open, and no other.
func TestEvictPartial(t *testing.T) {
	d := open(t, t.TempDir(), &cachedir.Options{MaxBytes: 6 << 20})
	a, b := content(1, 4<<20), content(2, 4<<20)
	pa, pb := partial(t, d, fileOf(a)), partial(t, d, fileOf(b))
	for i := range 4 {
		must(t, pa.PutChunk(i, chunk(a, i)), pb.PutChunk(i, chunk(b, i)))
	}
	if s := d.Stats(); s.Partial != 2 || s.PartialBytes < 8<<20 {
		t.Errorf("open ones: %+v", s)
	}
	pa.Close()
	put(t, d, []byte("one more"))
	if s := d.Stats(); s.Partial != 1 || s.Files != 1 {
		t.Errorf("after one was closed: %+v", s)
	}
	must(t, pb.Complete(background))
	pb.Close()
}
