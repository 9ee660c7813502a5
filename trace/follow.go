package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Follower reads a file that is being written, and goes on with the new file of that
// name when the old one was moved away or cut to nothing, as log rotation does. Read
// waits for more; after Stop it returns io.EOF where there is none.
type Follower struct {
	path string
	f    *os.File
	off  int64
	stop chan struct{}
	once sync.Once
}

// followEvery is how often a Follower looks for more.
const followEvery = 200 * time.Millisecond

// Follow opens a file to follow it from its beginning or its end.
func Follow(path string, fromEnd bool) (*Follower, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	fl := &Follower{path: path, f: f, stop: make(chan struct{})}
	if fromEnd {
		if fl.off, err = f.Seek(0, io.SeekEnd); err != nil {
			return nil, errors.Join(fmt.Errorf("follow log: %w", err), f.Close())
		}
	}
	return fl, nil
}

// Stop makes Read end. It may be called at any time by anyone.
func (f *Follower) Stop() { f.once.Do(func() { close(f.stop) }) }

// Close closes the file. Nothing may read any more.
func (f *Follower) Close() error {
	f.Stop()
	return f.f.Close()
}

func (f *Follower) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	timer := time.NewTimer(followEvery)
	defer timer.Stop()
	for {
		stopped := false
		select {
		case <-f.stop: // before the read: what was written before Stop is read
			stopped = true
		default:
		}
		n, err := f.f.Read(b)
		f.off += int64(n)
		if n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		again, err := f.rotated()
		if err != nil {
			return 0, err
		}
		if again {
			continue
		}
		if stopped {
			return 0, io.EOF
		}
		timer.Reset(followEvery)
		select {
		case <-f.stop:
		case <-timer.C:
		}
	}
}

// rotated goes on with a new file, or with the beginning of the same one, and tells
// whether there is one.
func (f *Follower) rotated() (bool, error) {
	now, err := os.Stat(f.path)
	if errors.Is(err, os.ErrNotExist) { // between moving away and making anew
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("follow log: %w", err)
	}
	open, err := f.f.Stat()
	if err != nil {
		return false, fmt.Errorf("follow log: %w", err)
	}
	if os.SameFile(now, open) {
		if now.Size() >= f.off {
			return false, nil
		}
		f.off = 0
		if _, err := f.f.Seek(0, io.SeekStart); err != nil {
			return false, fmt.Errorf("follow log: %w", err)
		}
		return true, nil
	}
	next, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("follow log: %w", err)
	}
	old := f.f
	f.f, f.off = next, 0
	return true, old.Close()
}

// Follow calls fn for the records of a stream that is still being written, such as a
// [Follower], as soon as each is there. It cannot find out the format: FormatTrace is
// taken where the options have none. It ends where the stream does.
func (in *Input) Follow(r io.Reader, name string, fn func(Source, *Record) error) error {
	if in.o.Format == "" {
		in.o.Format = FormatTrace
	}
	raw := &rawReader{r: r, n: &in.read}
	dec, err := in.decoder(raw, nil)
	if err != nil {
		return err
	}
	err = in.records(context.Background(), dec, name, fn)
	if raw.err != nil {
		return fmt.Errorf("read log %s: %w", name, raw.err)
	}
	return err
}
