package objtest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"example.org/slipway/registry/objstore"
)

func (t *suite) uploadAppend() {
	data := Content(3, t.opts.LargeSize)
	u, err := t.s.NewUpload(t.Context(), int64(len(data)))
	t.must(err, "NewUpload")
	defer u.Cancel(t.Context())
	if u.Size() != 0 {
		t.Errorf("new upload: got size %d, want 0", u.Size())
	}
	rest := data
	for i := 0; len(rest) > 0; i++ {
		n := min(len(rest), []int{0, 1, 1000, 4096, 100_000, 1 << 20}[i%6])
		piece := bytes.Clone(rest[:n])
		t.mustWrite(u, piece)
		clear(piece) // the store must have its own copy
		rest = rest[n:]
	}
	t.must(u.Commit(t.Context(), blobKey), "Commit")
	t.wantObject(blobKey, data)
}

func (t *suite) uploadEmpty() {
	u, err := t.s.NewUpload(t.Context(), 0)
	t.must(err, "NewUpload")
	t.must(u.Commit(t.Context(), "e/one"), "Commit")
	t.wantObject("e/one", nil)
	// There is no Write: a registry does this between POST and PATCH.
	u, err = t.s.NewUpload(t.Context(), -1)
	t.must(err, "NewUpload")
	u = t.mustResume(t.mustSuspend(u), 0)
	u = t.mustResume(t.mustSuspend(u), 0)
	t.must(u.Commit(t.Context(), "e/two"), "Commit")
	t.wantObject("e/two", nil)
}

// uploadSizeHint checks that the size hint does not bind.
func (t *suite) uploadSizeHint() {
	size := min(t.opts.LargeSize, 3<<20) // a store with small segments would take long for many of them
	data := Content(1, size)
	for _, hint := range []int{-1, 0, 10, 2 * size / 3, 20 * size} {
		u, err := t.s.NewUpload(t.Context(), int64(hint))
		t.must(err, fmt.Sprintf("NewUpload with hint %d", hint))
		t.mustWrite(u, data)
		t.must(u.Commit(t.Context(), "h/x"), "Commit")
		t.wantObject("h/x", data)
	}
}

// uploadTag checks that Stat and Get return the tag that Commit returned, and that other bytes get
// another tag.
func (t *suite) uploadTag() {
	seen := map[string]bool{}
	for i, size := range []int{0, 1000, 1000, t.opts.LargeSize, t.opts.LargeSize} {
		u := t.mustUpload(Content(uint64(i), size))
		t.must(u.Commit(t.Context(), "t/x"), "Commit")
		info, err := t.s.Stat(t.Context(), "t/x")
		t.must(err, "Stat")
		obj, err := t.s.Get(t.Context(), "t/x", 0, -1)
		t.must(err, "Get")
		t.must(obj.Close(), "Close")
		if got := obj.Info().Tag; info.Tag != u.Tag() && u.Tag() != "" || got != info.Tag && got != "" {
			t.Errorf("object of %d bytes: Commit calls it %q, Stat %q and Get %q", size, u.Tag(), info.Tag, got)
		}
		if info.Tag != "" && seen[info.Tag] {
			t.Errorf("object of %d bytes: it has the tag %q of another", size, info.Tag)
		}
		seen[info.Tag] = true
	}
}

func (t *suite) uploadReplaces() {
	t.mustPut("u/x", Content(1, 5000))
	t.must(t.mustUpload(Content(2, 100)).Commit(t.Context(), "u/x"), "Commit")
	t.wantObject("u/x", Content(2, 100))
	t.wantKeys("", "", []string{"u/x"})
}

func (t *suite) uploadInvisible() {
	u := t.mustUpload(Content(1, 1000))
	defer u.Cancel(t.Context())
	t.wantKeys("", "", nil)
	state := t.mustSuspend(u)
	t.wantKeys("", "", nil)
	u = t.mustResume(state, 1000)
	t.must(u.Commit(t.Context(), "u/x"), "Commit")
	t.wantKeys("", "", []string{"u/x"})
}

// uploadEnded checks that after its end an upload rejects everything but Cancel, which does
// nothing.
func (t *suite) uploadEnded() {
	ctx := t.Context()
	for _, end := range []struct {
		name string
		do   func(objstore.Upload) error
	}{
		{"Commit", func(u objstore.Upload) error { return u.Commit(ctx, "end/x") }},
		{"Suspend", func(u objstore.Upload) error { _, err := u.Suspend(ctx); return err }},
		{"Cancel", func(u objstore.Upload) error { return u.Cancel(ctx) }},
	} {
		u := t.mustUpload([]byte("bytes"))
		t.must(end.do(u), end.name)
		if n, err := u.Write([]byte("more")); n != 0 || err == nil {
			t.Errorf("Write after %s: got %d, %v; want an error", end.name, n, err)
		}
		if err := u.Commit(ctx, "end/y"); err == nil {
			t.Errorf("Commit after %s: got no error", end.name)
		}
		if state, err := u.Suspend(ctx); err == nil {
			t.Errorf("Suspend after %s: got %q, no error", end.name, state)
		}
		t.must(u.Cancel(ctx), "Cancel after "+end.name)
	}
	t.wantKeys("", "", []string{"end/x"})
	t.wantObject("end/x", []byte("bytes"))

	u := t.mustUpload([]byte("kept"))
	state := t.mustSuspend(u)
	t.must(u.Cancel(ctx), "Cancel after Suspend")
	u = t.mustResume(state, 4)
	t.must(u.Commit(ctx, "end/z"), "Commit")
	t.wantObject("end/z", []byte("kept"))
}

func (t *suite) uploadCancel() {
	u := t.mustUpload(Content(1, 1000))
	t.must(u.Cancel(t.Context()), "Cancel")
	t.must(u.Cancel(t.Context()), "second Cancel")
	u, err := t.s.NewUpload(t.Context(), 100)
	t.must(err, "NewUpload")
	t.must(u.Cancel(t.Context()), "Cancel before any Write")
	state := t.mustSuspend(t.mustUpload(Content(1, 1000)))
	t.must(t.mustResume(state, 500).Cancel(t.Context()), "Cancel after Resume")
	_, err = t.s.Resume(t.Context(), state, 500)
	t.wantErr(err, objstore.ErrNotExist, "Resume after Cancel")
	t.wantKeys("", "", nil)
}

func (t *suite) uploadCommitFails() {
	t.mustPut("f/x", []byte("old"))
	state := t.mustSuspend(t.mustUpload([]byte("new")))
	u := t.mustResume(state, 3)
	if err := u.Commit(t.Context(), "f/../x"); err == nil {
		t.Fatal("Commit to an impossible key: got no error")
	}
	t.must(u.Cancel(t.Context()), "Cancel")
	_, err := t.s.Resume(t.Context(), state, 3)
	t.wantErr(err, objstore.ErrNotExist, "Resume after a failed Commit")
	t.wantKeys("", "", []string{"f/x"})
	t.wantObject("f/x", []byte("old"))
}

func (t *suite) uploadCommitRace() {
	content := func(i int) []byte { return Content(uint64(i), 100_000+i) }
	for _, key := range []string{"race/1/data", "race/2/data", "race/2/deep/data"} {
		t.race(func(i int) {
			u, err := t.s.NewUpload(t.Context(), -1)
			if err == nil {
				_, err = u.Write(content(i))
			}
			if err == nil {
				err = u.Commit(t.Context(), key)
			}
			if err != nil {
				t.Errorf("upload: %v", err)
				return
			}
			t.wantOneOf(key, content)
		})
	}
}

func (t *suite) resume() {
	data := Content(1, t.opts.LargeSize)
	size := int64(len(data))
	cuts := []int64{0, 1, 1000, size / 2, size/2 + 1, size}
	u := t.mustUpload(nil)
	for i, cut := range cuts[1:] {
		t.mustWrite(u, data[cuts[i]:cut])
		u = t.mustResume(t.mustSuspend(u), cut)
	}
	t.must(u.Commit(t.Context(), blobKey), "Commit")
	t.wantObject(blobKey, data)
}

func (t *suite) resumeShorter() {
	for _, size := range []int64{9999, 4096, 1, 0} {
		u := t.mustResume(t.mustSuspend(t.mustUpload(Content(1, 10_000))), size)
		t.mustWrite(u, Content(2, 50))
		t.must(u.Commit(t.Context(), "s/x"), "Commit")
		t.wantObject("s/x", append(Content(1, 10_000)[:size], Content(2, 50)...))
	}
}

func (t *suite) resumeMissing() {
	ctx := t.Context()
	state := t.mustSuspend(t.mustUpload(Content(1, 100)))
	_, err := t.s.Resume(ctx, state, 101)
	t.wantErr(err, objstore.ErrNotExist, "Resume beyond the size")
	if _, err := t.s.Resume(ctx, state, -1); err == nil {
		t.Error("Resume at -1: got no error")
	}
	u := t.mustResume(state, 100) // the failed ones did no harm
	t.must(u.Commit(ctx, "m/x"), "Commit")
	t.wantObject("m/x", Content(1, 100))
	for name, state := range map[string]string{
		"committed": state, "empty": "", "unknown": "unknown", "a path": "../m/x", "a key": "m/x", "NUL": "\x00",
	} {
		_, err := t.s.Resume(ctx, state, 0)
		t.wantErr(err, objstore.ErrNotExist, "Resume of state: "+name)
		t.must(t.s.Abandon(ctx, state), "Abandon of state: "+name)
	}
	t.wantObject("m/x", Content(1, 100))
}

func (t *suite) abandon() {
	ctx := t.Context()
	state := t.mustSuspend(t.mustUpload(Content(1, 100)))
	other := t.mustSuspend(t.mustUpload(Content(2, 100)))
	t.must(t.s.Abandon(ctx, state), "Abandon")
	t.must(t.s.Abandon(ctx, state), "second Abandon")
	_, err := t.s.Resume(ctx, state, 100)
	t.wantErr(err, objstore.ErrNotExist, "Resume after Abandon")
	u := t.mustResume(other, 100)
	t.must(u.Commit(ctx, "a/x"), "Commit")
	t.wantObject("a/x", Content(2, 100))
}

func (t *suite) suspendMany() {
	states := make([]string, t.opts.Suspended)
	for i := range states {
		states[i] = t.mustSuspend(t.mustUpload([]byte(fmt.Sprint(i))))
	}
	sorted := slices.Sorted(slices.Values(states))
	if n := len(slices.Compact(sorted)); n != len(states) {
		t.Fatalf("%d uploads have %d states", len(states), n)
	}
	for i := 0; i < len(states); i += 1 + len(states)/20 {
		want := []byte(fmt.Sprint(i))
		u := t.mustResume(states[i], int64(len(want)))
		t.must(u.Commit(t.Context(), "many/x"), "Commit")
		t.wantObject("many/x", want)
	}
	for _, state := range states {
		t.must(t.s.Abandon(t.Context(), state), "Abandon")
	}
	t.wantKeys("", "", []string{"many/x"})
}

// commitDeleteRace checks that removing the last object of a directory does not break a commit into
// it.
func (t *suite) commitDeleteRace() {
	t.race(func(i int) {
		key := fmt.Sprintf("cd/dir/%d/data", i%2)
		for n := range 30 {
			data := Content(uint64(i%2), 100)
			var err error
			switch {
			case i%4 < 2:
				err = t.s.Delete(t.Context(), key)
			case n%2 == 0:
				err = t.s.Put(t.Context(), key, data, true)
				if errors.Is(err, objstore.ErrExist) {
					err = nil
				}
			default:
				var u objstore.Upload
				if u, err = t.s.NewUpload(t.Context(), -1); err == nil {
					_, err = u.Write(data)
				}
				if err == nil {
					err = u.Commit(t.Context(), key)
				}
			}
			if err != nil {
				t.Errorf("commit and delete of %s: %v", key, err)
				return
			}
		}
	})
	for info, err := range t.s.List(t.Context(), "cd/", "") {
		t.must(err, "List")
		t.wantObject(info.Key, Content(uint64(info.Key[len("cd/dir/")]-'0'), 100))
	}
}

func (t *suite) sweep() {
	sw, ok := objstore.As[objstore.UploadSweeper](t.s)
	if !ok {
		t.Skip("the store is no UploadSweeper")
	}
	ctx := t.Context()
	t.mustPut("sw/x", []byte("object"))
	kept := t.mustSuspend(t.mustUpload(Content(1, 100)))
	lost := []string{t.mustSuspend(t.mustUpload(Content(2, 200))), t.mustSuspend(t.mustUpload(Content(3, 50)))}
	keep := func(state string) bool { return state == kept }

	n, size, err := sw.SweepUploads(ctx, time.Now().Add(-time.Hour), keep)
	if n != 0 || size != 0 || err != nil {
		t.Errorf("SweepUploads before their time: got %d, %d bytes, %v; want 0, 0, nil", n, size, err)
	}
	n, size, err = sw.SweepUploads(ctx, time.Now().Add(time.Hour), keep)
	if n != 2 || size != 250 || err != nil {
		t.Errorf("SweepUploads: got %d, %d bytes, %v; want 2, 250, nil", n, size, err)
	}
	for _, state := range lost {
		_, err := t.s.Resume(ctx, state, 0)
		t.wantErr(err, objstore.ErrNotExist, "Resume after SweepUploads")
	}
	u := t.mustResume(kept, 100)
	t.must(u.Commit(ctx, "sw/kept"), "Commit")
	t.wantObject("sw/kept", Content(1, 100))
	t.wantObject("sw/x", []byte("object"))
	n, size, err = sw.SweepUploads(ctx, time.Now().Add(time.Hour), keep)
	if n != 0 || size != 0 || err != nil {
		t.Errorf("second SweepUploads: got %d, %d bytes, %v; want 0, 0, nil", n, size, err)
	}
}
