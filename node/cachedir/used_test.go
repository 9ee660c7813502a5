package cachedir_test

import (
	"container/list"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/node/cachedir"
)

// lru is an exact LRU over opens.
type lru struct {
	max, used, fetched int64
	sizeOf             func(int) int64
	order              list.List // of int, the next to go first
	at                 map[int]*list.Element
}

func (l *lru) open(i int, size int64) {
	if e := l.at[i]; e != nil {
		l.order.MoveToBack(e)
		return
	}
	l.fetched += size
	for l.used+size > l.max {
		old := l.order.Remove(l.order.Front()).(int)
		delete(l.at, old)
		l.used -= l.sizeOf(old)
	}
	l.used += size
	l.at[i] = l.order.PushBack(i)
}

// TestReplay runs tasks of images that share layers through a cache that holds a part of
// them. The kernel opens cached files itself. So the cache sees only misses, and which
// files are in memory when a container ends. It fetches hardly more than an exact LRU
// over all opens would. It never takes more disk space than the budget and one file.
// SLIPWAY_REPLAY_SCALE multiplies the size of the files and of the cache of 7 MiB.
func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	if os.Geteuid() != 0 {
		t.Skip("reading as an overlay does needs root")
	}
	for name, test := range map[string]struct {
		policy  cachedir.Policy
		observe bool
		// least and most bound the fetches, relative to those of the exact LRU.
		least, most float64
	}{
		"lru": {cachedir.LRU, true, 0.5, 1.05},
		// Observe is what makes the difference.
		"what the pool saw": {cachedir.LRU, false, 1.1, 2},
		"fifo":              {cachedir.FIFO, true, 1.1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			fetched, exact := replay(t, test.policy, test.observe)
			t.Logf("%d bytes fetched, %.3f of what an exact LRU fetches", fetched, float64(fetched)/float64(exact))
			if share := float64(fetched) / float64(exact); share < test.least || share > test.most {
				t.Errorf("%.3f, want %v to %v", share, test.least, test.most)
			}
		})
	}
}

// replay returns how many bytes were fetched, and how many an exact LRU would fetch.
func replay(t *testing.T, policy cachedir.Policy, observe bool) (fetched, exact int64) {
	const (
		images, bases  = 30, 4
		baseFiles, own = 60, 50
	)
	scale := int64(1)
	if v := os.Getenv("SLIPWAY_REPLAY_SCALE"); v != "" {
		var err error
		scale, err = strconv.ParseInt(v, 10, 64)
		must(t, err)
	}
	budget := 7 << 20 * scale
	dir := ramDir(t, 64*scale)
	d := open(t, dir, &cachedir.Options{MaxBytes: budget, Policy: policy, SyncEvery: -1})
	sizeOf := func(i int) int64 { return 4096 * scale * int64(1+i*3%5) }
	model := &lru{max: budget, at: map[int]*list.Element{}, sizeOf: sizeOf}
	var most int64 // on the disk
	defer func() {
		t.Logf("at most %d bytes on the disk, of %d", most, budget)
		if most > budget+sizeOf(3) { // the largest file
			t.Errorf("%d bytes on the disk, and the cache may take %d", most, budget)
		}
	}()
	rng := rand.New(rand.NewPCG(7, 7))
	filesOf := func(image int) (all []int) {
		for i := range baseFiles {
			all = append(all, image%bases*baseFiles+i)
		}
		for i := range own {
			all = append(all, bases*baseFiles+image*own+i)
		}
		return all
	}
	files := map[int]gear.File{}
	use := func(i int) {
		f, known := files[i]
		if !known {
			f = fileOf(content(uint64(i), int(sizeOf(i))))
			files[i] = f
		}
		model.open(i, sizeOf(i))
		fd, err := unix.Open(pathOf(d, f), unix.O_RDONLY|unix.O_NOATIME, 0)
		if err != nil { // the pool is asked
			must(t, write(d, f, content(uint64(i), int(sizeOf(i)))))
			fetched += sizeOf(i)
			var st unix.Statfs_t
			must(t, unix.Statfs(dir, &st))
			most = max(most, int64(st.Blocks-st.Bfree)*st.Bsize)
			r, err := d.OpenFile(f.Name)
			must(t, err)
			fd, err = unix.Dup(int(r.Fd()))
			must(t, err, r.Close())
		}
		_, err = unix.Read(fd, make([]byte, 4096))
		must(t, err, unix.Close(fd))
	}
	for range 250 {
		// A few images run often, most rarely. A task opens a part of the image.
		image := int(float64(images) * rng.Float64() * rng.Float64())
		all := filesOf(image)
		task := rng.IntN(2)
		for k, i := range all {
			if k%3 != task {
				use(i)
			}
		}
		if observe {
			for _, i := range all {
				if f, known := files[i]; known {
					d.Observe(f.Name)
				}
			}
		}
	}
	return fetched, model.fetched
}

// TestObserve checks that files which are read without the cache's knowledge stay, also over a
// restart, and that files which are not in memory are evicted.
func TestObserve(t *testing.T) {
	dir := t.TempDir()
	c := &clock{at: time.Now().Add(time.Hour)}
	o := &cachedir.Options{MaxBytes: 1 << 20, Clock: c.now, SyncEvery: -1}
	d, err := cachedir.Open(dir, o)
	must(t, err)
	var files []gear.File
	for i := range 4 {
		files = append(files, put(t, d, content(uint64(i), 200<<10)))
	}
	must(t, d.Sync())
	for i, f := range files {
		fd, err := unix.Open(pathOf(d, f), unix.O_RDONLY, 0)
		must(t, err, unix.Fsync(fd), unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
		if i == 1 {
			_, err = unix.Read(fd, make([]byte, 100))
		}
		must(t, err, unix.Close(fd))
		d.Observe(f.Name)
	}
	must(t, d.Close())
	d = open(t, dir, o)
	for i := range 3 {
		put(t, d, content(uint64(10+i), 200<<10))
	}
	for i, want := range []bool{false, true, false, true} {
		if d.Has(files[i].Name) != want {
			t.Errorf("file %d is there: %v", i, !want)
		}
	}
}
