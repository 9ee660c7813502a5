package blocktest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"example.org/slipway/volume/block"
)

func (t *suite) life() {
	ctx := t.Context()
	_, err := t.s.Open(ctx, "v")
	t.wants(err, block.ErrNotFound, "Open of none")
	_, err = t.s.OpenWriter(ctx, "v")
	t.wants(err, block.ErrNotFound, "OpenWriter of none")
	_, err = t.s.Stat(ctx, "v")
	t.wants(err, block.ErrNotFound, "Stat of none")
	t.wants(t.s.Commit(ctx, "v"), block.ErrNotFound, "Commit of none")

	v := t.create("v", "", size)
	_, err = t.s.Create(ctx, "v", "", size)
	t.wants(err, block.ErrExists, "Create of one that is written")
	_, err = t.s.Open(ctx, "v")
	t.wants(err, block.ErrNotCommitted, "Open of one that is written")
	_, err = t.s.OpenWriter(ctx, "v")
	t.wants(err, block.ErrInUse, "OpenWriter of one that is written")
	t.wants(t.s.Commit(ctx, "v"), block.ErrInUse, "Commit of one that is written")
	t.wants(t.s.Remove(ctx, "v"), block.ErrInUse, "Remove of one that is written")
	t.write(v, Content(1, 5000), 3000)
	t.close(v)
	if err := v.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}

	_, err = t.s.Open(ctx, "v")
	t.wants(err, block.ErrNotCommitted, "Open of one that was written")
	if info, err := t.s.Stat(ctx, "v"); err != nil || info.Committed {
		t.Errorf("Stat: got %+v, %v", info, err)
	}
	v, err = t.s.OpenWriter(ctx, "v")
	t.must(err, "OpenWriter")
	t.wantBytes(v, Content(1, 5000), 3000)
	t.write(v, Content(2, 100), 4000)
	t.close(v)
	t.must(t.s.Commit(ctx, "v"), "Commit")
	t.must(t.s.Commit(ctx, "v"), "Commit of a committed one")
	_, err = t.s.OpenWriter(ctx, "v")
	t.wants(err, block.ErrCommitted, "OpenWriter of a committed one")
	_, err = t.s.Create(ctx, "v", "", size)
	t.wants(err, block.ErrExists, "Create of a committed one")

	want := make([]byte, size)
	copy(want[3000:], Content(1, 5000))
	copy(want[4000:], Content(2, 100))
	t.wantVolume("v", want)
	r := t.open("v")
	if _, err := r.WriteAt([]byte("x"), 0); err == nil {
		t.Error("a committed volume was written")
	}
	if err := r.Zero(0, 4096); err == nil {
		t.Error("a committed volume was zeroed")
	}
	t.close(r)
	t.wantVolume("v", want)
}

func (t *suite) remove() {
	ctx := t.Context()
	t.must(t.s.Remove(ctx, "none"), "Remove of none")
	t.made("a", "", size, 0, Content(1, 5000))
	t.made("b", "a", size, 0, Content(2, 5000))
	one, two := t.open("a"), t.open("a")
	t.wants(t.s.Remove(ctx, "a"), block.ErrInUse, "Remove of one with readers and a child")
	r := t.open("b")
	t.wants(t.s.Remove(ctx, "b"), block.ErrInUse, "Remove of one with a reader")
	t.wantBytes(r, Content(2, 5000), 0)
	t.close(r)
	t.must(t.s.Remove(ctx, "b"), "Remove")
	_, err := t.s.Stat(ctx, "b")
	t.wants(err, block.ErrNotFound, "Stat of a removed one")
	t.close(one)
	t.wants(t.s.Remove(ctx, "a"), block.ErrInUse, "Remove of one with one more reader")
	t.wantBytes(two, Content(1, 5000), 0)
	t.close(two)
	// An uncommitted volume holds its parent, too.
	t.close(t.create("c-half", "a", size))
	t.wants(t.s.Remove(ctx, "a"), block.ErrInUse, "Remove of one with a child that is written")
	t.must(t.s.Remove(ctx, "c-half"), "Remove of one that was written")
	t.must(t.s.Remove(ctx, "a"), "Remove without children")
	t.must(t.s.Remove(ctx, "a"), "Remove once more")
	if infos, err := t.s.List(ctx, ""); err != nil || len(infos) > 0 {
		t.Errorf("left: %v, %v", infos, err)
	}
	// A new volume of that name has none of the old content.
	v := t.create("a", "", size)
	t.wantBytes(v, make([]byte, 8192), 0)
	t.close(v)
}

func (t *suite) parents() {
	ctx := t.Context()
	_, err := t.s.Create(ctx, "b", "a", size)
	t.wants(err, block.ErrNotFound, "Create with no parent")
	v := t.create("a", "", size)
	_, err = t.s.Create(ctx, "b", "a", size)
	t.wants(err, block.ErrNotCommitted, "Create with a parent that is written")
	t.commit("a", v)
	if _, err := t.s.Create(ctx, "b", "a", size-4096); err == nil {
		t.Error("Create smaller than the parent: got no error")
	}
	if _, err := t.s.Stat(ctx, "b"); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("left by what failed: %v", err)
	}
	for _, id := range []string{"b", "c-b"} {
		t.made(id, "a", size, 0, nil)
		info, err := t.s.Stat(ctx, id)
		if err != nil || info.Parent != "a" {
			t.Errorf("Stat %s: got %+v, %v", id, info, err)
		}
	}
	t.made("deep", "c-b", size+8192, size, Content(1, 8192))
	t.wantVolume("deep", append(make([]byte, size), Content(1, 8192)...))
}

// createRace checks that only one of many concurrent creations of a volume succeeds.
func (t *suite) createRace() {
	var wg sync.WaitGroup
	var made, others atomic.Int32
	for range 8 {
		wg.Go(func() {
			v, err := t.s.Create(t.Context(), "v", "", size)
			switch {
			case err == nil:
				made.Add(1)
				if _, err := v.WriteAt(Content(1, 4096), 0); err != nil {
					t.Errorf("WriteAt: %v", err)
				}
				if err := v.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			case errors.Is(err, block.ErrExists):
				others.Add(1)
			default:
				t.Errorf("Create: %v", err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 || others.Load() != 7 {
		t.Errorf("%d made it, %d found it", made.Load(), others.Load())
	}
}

// commitRace checks that concurrent clones, opens and removals see a volume whole or not at all.
func (t *suite) commitRace() {
	for round := range 3 * t.opts.Rounds {
		id := fmt.Sprintf("v%d", round)
		t.made(id, "", 64<<10, 0, Content(1, 64<<10))
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { t.cloneOnce(id, fmt.Sprintf("c-%d-%d", round, i)) })
			wg.Go(func() {
				v, err := t.s.Open(t.Context(), id)
				if errors.Is(err, block.ErrNotFound) {
					return
				}
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				b := make([]byte, 64<<10)
				if _, err := v.ReadAt(b, 0); err != nil || string(b) != string(Content(1, 64<<10)) {
					t.Errorf("ReadAt: other bytes, or %v", err)
				}
				if err := v.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		wg.Go(func() {
			if err := t.s.Remove(t.Context(), id); err != nil && !errors.Is(err, block.ErrInUse) {
				t.Errorf("Remove: %v", err)
			}
		})
		wg.Wait()
	}
}

// cloneOnce clones a volume that may be removed meanwhile.
func (t *suite) cloneOnce(parent, id string) {
	v, err := t.s.Create(t.Context(), id, parent, 64<<10)
	if errors.Is(err, block.ErrNotFound) {
		return
	}
	if err != nil {
		t.Errorf("Create: %v", err)
		return
	}
	b := make([]byte, 64<<10)
	if _, err := v.ReadAt(b, 0); err != nil || string(b) != string(Content(1, 64<<10)) {
		t.Errorf("clone: other bytes, or %v", err)
	}
	if err := v.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
