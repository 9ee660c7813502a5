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

// The modification time of a published file is the number of its generation, in seconds.
// Nobody sees it, because containers get times from the image. A checkpoint begins a new
// generation, flushes the file system, and records that all older generations are
// durable. If somebody wrote to a file, or a crash left it incomplete, its time is not
// the number of a generation.

// maxGeneration is greater than every generation and less than every time of day, in
// seconds. As a time, it lies in 2004.
const maxGeneration = 1 << 30

func isGeneration(sec int64) bool { return sec > 0 && sec < maxGeneration }

// state is what is recorded about the checkpoints.
type state struct {
	Version int `json:"version"`
	// Boot is the run of the kernel in which files were last published.
	Boot string `json:"boot"`
	// The files of generation Durable, and of all older ones, survive a power cut.
	Durable uint32 `json:"durable"`
	// Failed says that the disk reported an error. Files younger than Durable may then be
	// lost although the kernel still runs.
	Failed bool `json:"failed,omitempty"`
}

const (
	stateFile    = "state.json"
	stateVersion = 1
	maxState     = 4 << 10 // bytes
)

// parseState parses a state. It is an error if the state is damaged.
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

// readState returns the state. If no state can be read, it returns the zero value, which
// trusts no file.
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

// published notes that a file of n bytes waits for a checkpoint.
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

// checkpoints makes checkpoints when they are due, until the directory is closed.
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

// Sync makes a checkpoint. If it returns nil, everything that was published before the
// call survives a power cut. After the disk has reported an error, all later calls fail,
// because the kernel reports a loss only once.
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
		d.dirty = true // so that it is tried again
		d.pub.Unlock()
		return err
	}
	d.durable = gen
	d.mu.Lock()
	d.stats.Checkpoints++
	d.mu.Unlock()
	return nil
}

// flush writes back the file system. The kernel reports a lost write only once, so flush
// remembers the error.
func (d *Dir) flush() error {
	if err := unix.Syncfs(d.fd); err != nil {
		d.failed.Store(true)
		return fmt.Errorf("flush the cache directory: %w", err)
	}
	return nil
}
