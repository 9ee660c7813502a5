package cachedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
)

// A published file's modification time is the number of its generation, in
// seconds: nobody sees it, because containers get times from the image. A
// checkpoint begins a new generation, flushes the file system, and records that
// all older ones are durable. A file that somebody wrote to, or that a crash left
// half made, has a time that is no generation.

// maxGeneration is beyond every generation and below every time of day, in
// seconds: 2004.
const maxGeneration = 1 << 30

func isGeneration(sec int64) bool { return sec > 0 && sec < maxGeneration }

// state is what is recorded of the checkpoints.
type state struct {
	Version int `json:"version"`
	// Boot is the run of the kernel in which files were published last.
	Boot string `json:"boot"`
	// Durable: files of this generation and older survive a power cut.
	Durable uint32 `json:"durable"`
	// Failed: the disk reported an error, so that files younger than that may be
	// lost although the kernel still runs.
	Failed bool `json:"failed,omitempty"`
}

const (
	stateFile    = "state.json"
	stateVersion = 1
	maxState     = 4 << 10 // bytes
)

// parseState reads a state. One that is damaged is an error.
func parseState(b []byte) (state, error) {
	var s state
	if len(b) > maxState {
		return state{}, fmt.Errorf("state of %d bytes", len(b))
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return state{}, err
	}
	if s.Version != stateVersion {
		return state{}, fmt.Errorf("state of version %d", s.Version)
	}
	if s.Durable >= maxGeneration {
		return state{}, fmt.Errorf("generation %d", s.Durable)
	}
	return s, nil
}

// readState returns the state; the zero value if there is none that can be read,
// which trusts no file.
func (d *Dir) readState() state {
	b, err := os.ReadFile(filepath.Join(d.root, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return state{}
	}
	var s state
	if err == nil {
		s, err = parseState(b)
	}
	if err != nil {
		d.log.Warn("state of the cache directory cannot be read; all files are hashed", "err", err)
	}
	return s
}

// writeState replaces the state durably.
func (d *Dir) writeState(s state) error {
	s.Version = stateVersion
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(d.root, stateFile)
	err = d.withRoom(0, func() error { return durable.WriteFile(path, append(b, '\n')) })
	if err != nil {
		return fmt.Errorf("write the state of the cache directory: %w", err)
	}
	return nil
}

// published notes that a file of so many bytes waits for a checkpoint.
func (d *Dir) published(n int64) {
	d.pub.Lock()
	d.dirty = true
	d.unsynced += n
	due := d.unsynced >= d.opts.SyncBytes
	d.pub.Unlock()
	c := d.wake
	if due {
		c = d.now
	}
	select {
	case c <- struct{}{}:
	default:
	}
}

// checkpoints makes them when they are due, until the directory is closed.
func (d *Dir) checkpoints() {
	defer close(d.done)
	var due <-chan time.Time
	wake := d.wake
	if d.opts.SyncEvery < 0 {
		wake = nil
	}
	for {
		select {
		case <-wake:
			if due == nil {
				due = time.After(d.opts.SyncEvery)
			}
			continue
		case <-due:
		case <-d.now:
			if d.opts.SyncEvery < 0 {
				continue
			}
		case <-d.stop:
			return
		}
		due = nil
		if err := d.Sync(); err != nil {
			d.log.Error("checkpoint of the cache directory failed", "err", err)
		}
	}
}

// Sync makes a checkpoint: whatever was published before the call survives a
// power cut when it returns nil. Once the disk has reported an error all further
// calls fail, since the kernel reports what it lost only once.
func (d *Dir) Sync() error {
	d.syncMu.Lock()
	defer d.syncMu.Unlock()
	if d.failed.Load() {
		return errors.New("an earlier checkpoint failed: files published since the one before are hashed at the next start")
	}
	d.pub.Lock()
	if !d.dirty {
		d.pub.Unlock()
		return nil
	}
	gen := d.gen
	d.gen++
	d.dirty, d.unsynced = false, 0
	d.pub.Unlock()
	s := state{Boot: d.opts.Boot, Durable: gen}
	if err := d.flush(); err != nil {
		s.Durable, s.Failed = d.durable, true
		return errors.Join(err, d.writeState(s))
	}
	if err := d.writeState(s); err != nil {
		d.pub.Lock()
		d.dirty = true // to be tried again
		d.pub.Unlock()
		return err
	}
	d.durable = gen
	d.mu.Lock()
	d.stats.Checkpoints++
	d.mu.Unlock()
	return nil
}

// flush writes back the file system. The kernel reports a lost write once only,
// so the error is remembered.
func (d *Dir) flush() error {
	if err := unix.Syncfs(d.fd); err != nil {
		d.failed.Store(true)
		return fmt.Errorf("flush the cache directory: %w", err)
	}
	return nil
}
