package snapshotter_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"example.org/slipway/node/snapshotter"
)

// crashDir is the environment variable that makes the test program a process which works on
// snapshots until it is killed.
const crashDir = "SNAPSHOTTER_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		fmt.Println(work(dir))
		os.Exit(1)
	}
	if socket := os.Getenv(callSocket); socket != "" {
		if err := call(socket); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// work pulls, runs, commits and removes for ever.
func work(dir string) error {
	l := &trees{dir: filepath.Join(dir, "lower"), files: func(chain string) map[string]string { return map[string]string{"chain": chain} }}
	s, err := snapshotter.New(filepath.Join(dir, "root"), l, nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var wg sync.WaitGroup
	errs := make(chan error, 2)
	for worker := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if err := cycle(s, fmt.Sprintf("%d-%d-%d", os.Getpid(), worker, i), i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	return <-errs
}

// cycle runs through the life of an image of two layers and its containers. Every third image is
// kept, every fifth is unpacked.
func cycle(s *snapshotter.Snapshotter, name string, i int) error {
	ctx := context.Background()
	chain := ""
	for _, part := range []string{"low", "high"} {
		l := layerNamed(chain, part+name)
		labels := l.labels()
		if i%5 == 0 {
			delete(labels, snapshots.LabelSnapshotRef)
		}
		key := "ns/" + name + "/extract " + part
		_, err := s.Prepare(ctx, key, chain, snapshots.WithLabels(labels))
		if i%5 == 0 && err == nil {
			err = s.Commit(ctx, l.chain(), key)
		} else if errdefs.IsAlreadyExists(err) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", part, err)
		}
		chain = l.chain()
	}
	_, err1 := s.Prepare(ctx, "ns/"+name+"/init-key", chain)
	err2 := s.Commit(ctx, "ns/"+name+"/init", "ns/"+name+"/init-key")
	_, err3 := s.Prepare(ctx, "ns/"+name+"/c", "ns/"+name+"/init")
	_, err4 := s.View(ctx, "ns/"+name+"/v", chain)
	if err := errors.Join(err1, err2, err3, err4); err != nil || i%3 == 0 {
		return err
	}
	low := layerNamed("", "low"+name)
	for _, key := range []string{"ns/" + name + "/v", "ns/" + name + "/c", "ns/" + name + "/init", chain, low.chain()} {
		if err := s.Remove(ctx, key); err != nil {
			return err
		}
	}
	return s.Cleanup(ctx)
}

// TestKill repeatedly kills a process that works on snapshots, and each time checks what the next
// one finds.
func TestKill(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	if text := os.Getenv("SLIPWAY_KILL_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	b := newBed(t)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b.trees.files = func(chain string) map[string]string { return map[string]string{"chain": chain} }
	for round := range rounds {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		killWorker(t, b.dir, time.Duration(random.IntN(60_000))*time.Microsecond)
		if random.IntN(3) == 0 {
			unmountBelow(t, b.dir) // and the machine with it
			b.lose(random)
		}
		b.open()
		b.cleanup()
		b.check(round)
	}
}

func killWorker(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the worker says %q", lines.Text())
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // an error means that it ended by itself and said why
	defer timer.Stop()
	for lines.Scan() {
		t.Errorf("the worker ended: %s", lines.Text())
	}
	_ = cmd.Wait() // killed
}

// check compares metadata, directories, mounts and Lower with each other.
func (b *bed) check(round int) {
	b.t.Helper()
	var infos []snapshots.Info
	if err := b.Walk(b.t.Context(), func(_ context.Context, i snapshots.Info) error { infos = append(infos, i); return nil }); err != nil {
		b.t.Fatal(err)
	}
	var claimed, active []string
	ordinary := 0
	for _, i := range infos {
		switch {
		case i.Kind != snapshots.KindCommitted:
			ordinary++
			m, err := b.Mounts(b.t.Context(), i.Name)
			if err != nil {
				b.t.Errorf("round %d: %v", round, err)
				continue
			}
			if m[0].Type == "bind" && strings.HasSuffix(m[0].Source, "/mnt") && !strings.Contains(i.Name, "extract") {
				active = append(active, i.Name)
				b.in(m, func(dir string) {
					if got, err := os.ReadFile(filepath.Join(dir, "chain")); err != nil || !strings.HasPrefix(string(got), "sha256:") {
						b.t.Errorf("round %d: %s: file holds %q, error %v", round, i.Name, got, err)
					}
				})
			}
		case i.Labels[snapshots.LabelSnapshotRef] == i.Name:
			claimed = append(claimed, i.Name)
		default:
			ordinary++
		}
	}
	b.cleanup()
	slices.Sort(claimed)
	slices.Sort(active)
	// The work that New starts continues meanwhile: it tells Lower of containers that were
	// committed when their process was killed.
	chains, containers := b.trees.known(b.t)
	for end := time.Now().Add(30 * time.Second); !slices.Equal(containers, active) && time.Now().Before(end); {
		time.Sleep(2 * time.Millisecond)
		chains, containers = b.trees.known(b.t)
	}
	if !slices.Equal(chains, claimed) {
		b.t.Errorf("round %d: Lower has chains\n%q, the records are\n%q", round, chains, claimed)
	}
	if !slices.Equal(containers, active) {
		b.t.Errorf("round %d: Lower has containers\n%q, the snapshots are\n%q", round, containers, active)
	}
	if names := b.names(); len(names) != ordinary {
		b.t.Errorf("round %d: directories %q for %d snapshots", round, names, ordinary)
	}
	if notes, err := os.ReadDir(filepath.Join(b.root(), "chains")); err != nil || len(notes) != 0 {
		b.t.Errorf("round %d: chains pending %v, error %v", round, notes, err)
	}
}

// TestOrphans creates by hand what a crash leaves between two steps.
func TestOrphans(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	b.prepare("ns/1/c", chain)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	dir := func(name string) string { return filepath.Join(b.root(), "snapshots", name) }
	lost := layerNamed("", "lost")
	for _, err := range []error{
		// The directory of the next number, already mounted, whose transaction was not committed.
		os.MkdirAll(dir("3/fs"), 0o755), os.Mkdir(dir("3/mnt"), 0o700), unix.Mount("orphan", dir("3/mnt"), "tmpfs", 0, "size=64k"), os.Symlink("ns/9/lost", dir("3/container")), b.trees.Started(t.Context(), snapshotter.Container{Key: "ns/9/lost", Chain: chain}),
		// A half-made directory and a half-deleted one.
		os.MkdirAll(dir("new-123/fs"), 0o755), os.MkdirAll(dir("trash-456/fs/x"), 0o755),
		// A layer that Lower claimed without a record, and one that never reached Lower.
		os.MkdirAll(b.trees.chain(lost.chain()), 0o755), os.WriteFile(filepath.Join(b.root(), "chains", lost.chain()), nil, 0o600),
		// A note of a layer whose record is there.
		os.WriteFile(filepath.Join(b.root(), "chains", chain), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.open()
	// This happens at once, before the work that New starts is done: the number is free.
	b.in(b.prepare("ns/2/c", chain), func(dir string) { b.read(filepath.Join(dir, "chain"), chain) })
	b.cleanup()
	if got := b.names(); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("directories %q, want those of the two snapshots", got)
	}
	b.check(0)
}

// TestUnrecorded fills the disk when a record must become durable. Nothing of the snapshot may
// stay, including its overlay, which is mounted by then.
func TestUnrecorded(t *testing.T) {
	b := newBed(t)
	chain := b.claim("one")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// The records are on a separate disk with little space.
	records, db := filepath.Join(b.dir, "records"), filepath.Join(b.root(), "metadata.db")
	content, err := os.ReadFile(db)
	if err == nil {
		err = errors.Join(os.Mkdir(records, 0o700), unix.Mount("records", records, "tmpfs", 0, "size=2m"), os.Remove(db),
			os.WriteFile(filepath.Join(records, "db"), content, 0o600), os.Symlink(filepath.Join(records, "db"), db))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.open()
	before, mounts := b.names(), mountsBelow(t, filepath.Join(b.root(), "snapshots"))
	large := snapshots.WithLabels(map[string]string{"large": strings.Repeat("x", 3<<20)})
	for range 3 {
		if m, err := b.Prepare(t.Context(), "ns/1/c", chain, large); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("prepare on a full disk: mounts %v, error %v", m, err)
		}
	}
	if got := b.names(); !slices.Equal(got, before) {
		t.Errorf("directories %q, before they were %q", got, before)
	}
	if got := mountsBelow(t, filepath.Join(b.root(), "snapshots")); !slices.Equal(got, mounts) {
		t.Errorf("mounted are %q, before they were %q", got, mounts)
	}
	b.in(b.prepare("ns/1/c", chain), func(dir string) { b.read(filepath.Join(dir, "chain"), chain) })
	b.check(0)
	b.remove("ns/1/c")
	b.check(0)
}

// TestRaces runs all operations concurrently.
func TestRaces(t *testing.T) {
	b := newBed(t)
	chain := b.claim("base")
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for i := range 4 {
				// All workers claim and drop the same chain.
				l := layerNamed(chain, "contended")
				if _, err := b.pull(l, chain); !errdefs.IsAlreadyExists(err) {
					t.Errorf("pull: %v", err)
				}
				key := fmt.Sprintf("ns/%d/%d", worker, i)
				if m, err := b.Prepare(t.Context(), key, l.chain()); err == nil {
					if got, err := os.ReadFile(filepath.Join(m[0].Source, "chain")); string(got) != l.chain() {
						t.Errorf("%s holds %q, error %v", key, got, err)
					}
					var mounts sync.WaitGroup
					for range 2 {
						mounts.Go(func() {
							if _, err := b.Mounts(t.Context(), key); err != nil {
								t.Error(err)
							}
						})
					}
					mounts.Wait()
					if err := b.Remove(t.Context(), key); err != nil {
						t.Error(err)
					}
				} else if !errdefs.IsNotFound(err) && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("prepare on a layer that may be gone: %v", err)
				}
				if err := b.Remove(t.Context(), l.chain()); err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
					t.Error(err)
				}
				if err := b.Cleanup(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.cleanup()
	b.check(0)
}
