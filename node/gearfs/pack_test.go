package gearfs_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
)

// packSource also sends the files of its profile before they are asked for.
type packSource struct {
	*fakeSource
	begin chan struct{} // closed when the first file may come
	told  chan struct{} // closed when it has told its names
	// send is what it sends, and at is called before each file.
	send []gear.File
	at   func(ctx context.Context, i int) error
}

func (s *packSource) Reconnect() {}

func (s *packSource) Pack(ctx context.Context, coming func([]gear.Name), deliver func(gear.File, io.Reader) error) error {
	coming(s.profile)
	close(s.told)
	select {
	case <-s.begin:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i, f := range s.send {
		if s.at != nil {
			if err := s.at(ctx, i); err != nil {
				return err
			}
		}
		s.mu.Lock()
		s.asked[f.Name]++
		s.mu.Unlock()
		r := gear.Arriving(ctx, bytes.NewReader(s.body[f.Name]))
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := deliver(f, bytes.NewReader(b)); err != nil {
			return err
		}
	}
	return nil
}

// TestPack starts many containers of an image, and opens its files, while a pack brings the files of
// its profile. The pack ends well or badly, early or late. All files must be right, none may come
// twice, and nobody may wait longer than the pack deserves.
func TestPack(t *testing.T) {
	broken := errors.New("connection reset")
	stalls := func(ctx context.Context, i int) error {
		if i == 40 {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	never := make(chan struct{})
	for _, c := range []struct {
		name string
		// set changes a source that sends the profile. The last of the files are large.
		set func(s *packSource, tr *tree)
		// late says that the files are asked for before the pack begins.
		late bool
		// asked is whether requests beside the pack are needed for small files.
		asked bool
		// most is how long it may take for those who open the files, if not 10 s.
		most time.Duration
	}{
		{name: "whole"},
		{name: "whole, late", late: true},
		{name: "dies", set: func(s *packSource, _ *tree) {
			s.at = func(_ context.Context, i int) error {
				if i == 40 {
					return broken
				}
				return nil
			}
		}, asked: true},
		{name: "dies at once", late: true, set: func(s *packSource, _ *tree) {
			s.at = func(context.Context, int) error { return broken }
		}, asked: true},
		{name: "stalls", set: func(s *packSource, _ *tree) { s.at = stalls }, asked: true},
		{name: "stalls, late", late: true, set: func(s *packSource, _ *tree) { s.at = stalls }, asked: true},
		{name: "never begins", set: func(s *packSource, _ *tree) { s.begin = never }, asked: true},
		{name: "leaves files out", late: true, set: func(s *packSource, _ *tree) {
			var some []gear.File
			for i, f := range s.send {
				if i%3 > 0 {
					some = append(some, f)
				}
			}
			s.send = some
		}, asked: true},
		{name: "names that nobody has", late: true, set: func(s *packSource, tr *tree) {
			for i := range 100_000 {
				s.profile = append(s.profile, gear.Name{1, byte(i), byte(i >> 8), byte(i >> 16)})
			}
		}},
		{name: "slow", set: func(s *packSource, _ *tree) {
			s.at = func(ctx context.Context, i int) error {
				if i > 40 {
					time.Sleep(200 * time.Millisecond)
				}
				return ctx.Err()
			}
		}, asked: true, most: 6 * time.Second},
		{name: "files of another image", set: func(s *packSource, _ *tree) {
			b := content(99, 5000)
			f := fileOf(b)
			s.body[f.Name] = b
			s.send = append([]gear.File{f}, s.send...)
			s.profile = append([]gear.Name{f.Name}, s.profile...)
		}},
		{name: "damaged", set: func(s *packSource, tr *tree) {
			s.at = func(_ context.Context, i int) error {
				if i == 40 {
					return fmt.Errorf("damaged: %w", gear.ErrContent)
				}
				return nil
			}
		}, asked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tr := makeTree(t, append(manyFiles(1, 200), content(3, 5<<20), content(4, 18<<20))...)
			src := &packSource{fakeSource: newSource(tr), begin: make(chan struct{}), told: make(chan struct{})}
			for i, f := range tr.files {
				if i < 100 || f.Size >= gear.LargeFile {
					src.profile = append(src.profile, f.Name)
				}
				if i < 100 {
					src.send = append(src.send, fileOf(tr.body[f.Name]))
				}
			}
			if c.set != nil {
				c.set(src, tr)
			}
			begin := sync.OnceFunc(func() {
				if src.begin != never {
					close(src.begin)
				}
			})
			n := newNode(t, gearfs.Options{Mode: gearfs.Lazy}, map[string]gearfs.Source{"a": src})
			ref := gearfs.SourceRef{Registry: "a", Repo: "repo"}
			for range 5 {
				n.Pack(ref, "")
			}
			<-src.told // otherwise they are asked for while the pack is on its way
			if !c.late {
				begin()
			}
			time.AfterFunc(100*time.Millisecond, begin)
			n.add("sha256:1", tr, "a")
			began := time.Now()
			var work sync.WaitGroup
			for range 20 {
				work.Go(func() {
					if _, err := n.Prefetch(t.Context(), "sha256:1", nil); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range 30 {
				work.Go(func() {
					for j := i; j < len(tr.files); j += 30 {
						if b, err := n.read(tr.files[j]); err != nil || !bytes.Equal(b, tr.body[tr.files[j].Name]) {
							t.Errorf("file %d: %v", j, err)
						}
					}
				})
			}
			work.Wait()
			if took := time.Since(began); took > cmp.Or(c.most, 10*time.Second) {
				t.Errorf("it took %v", took)
			}
			twice, small := 0, 0
			src.mu.Lock()
			for name, times := range src.asked {
				if times > 1 && len(src.body[name]) < gear.LargeFile {
					twice++
				}
			}
			for _, name := range src.order {
				for i, f := range src.send {
					if f.Name == name && i < 100 {
						small++
					}
				}
			}
			src.mu.Unlock()
			if twice > 0 {
				t.Errorf("%d files came twice", twice)
			}
			if !c.asked && small > 0 {
				t.Errorf("%d files of the pack were requested beside it", small)
			}
		})
	}
}
