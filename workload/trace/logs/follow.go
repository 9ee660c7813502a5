package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/tenfield"
)

// Follower reads a file that is being written. When log rotation moves the file away or truncates
// it, the follower continues with the new file of that name. It reads the old file until the new
// one has content, because a writer continues with the old file until it is told to open the new
// one. Read waits for more data. After Stop it returns io.EOF when there is none.
type Follower struct {
	path string
	f    *os.File
	off  int64
	next *os.File // a new file, while the rest of the old one is read
	stop chan struct{}
	once sync.Once
}

// followEvery is the interval at which a Follower looks for more data.
const followEvery = 200 * time.Millisecond

// Follow opens a file to follow it, from its beginning or from its end. At the end, it starts at
// the beginning of a line that has no end yet.
func Follow(path string, fromEnd bool) (*Follower, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("follow log: %w", err)
	}
	fl := &Follower{path: path, f: f, stop: make(chan struct{})}
	if fromEnd {
		if fl.off, err = seekLastLine(f); err != nil {
			return nil, errors.Join(fmt.Errorf("follow log: %w", err), f.Close())
		}
	}
	return fl, nil
}

// seekLastLine goes to the end of a file, or to the start of the last line if that has no end, and
// returns the position.
func seekLastLine(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || end == 0 {
		return end, err
	}
	from := max(0, end-tenfield.MaxRecord)
	tail := make([]byte, end-from)
	if _, err := f.ReadAt(tail, from); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	i := bytes.LastIndexByte(tail, '\n')
	if i < 0 && from > 0 { // no line that could be read
		return end, nil
	}
	return f.Seek(from+int64(i)+1, io.SeekStart)
}

// Stop makes Read end. Anyone may call it at any time.
func (f *Follower) Stop() { f.once.Do(func() { close(f.stop) }) }

// Close closes the file. Nothing may read from it afterwards.
func (f *Follower) Close() error {
	f.Stop()
	if f.next != nil {
		return errors.Join(f.f.Close(), f.next.Close())
	}
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

// rotated continues with a new file, or with the beginning of the same one, and reports whether
// there is one. It is called when the open file has been read to its end.
func (f *Follower) rotated() (bool, error) {
	if f.next != nil { // there was more to read in the old file when the new one was seen
		old := f.f
		f.f, f.off, f.next = f.next, 0, nil
		return true, old.Close()
	}
	now, err := os.Stat(f.path)
	if errors.Is(err, os.ErrNotExist) { // the old file was moved and the new one does not exist yet
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
	if now.Size() == 0 { // the writer has not opened the new file yet
		return false, nil
	}
	next, err := os.Open(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("follow log: %w", err)
	}
	f.next = next
	return true, nil // reads the old file once more, which is complete now
}

// samples returns the parts of the file by which its format is detected: the part before
// the place where reading begins, because the writer may have changed to another format,
// and the start of the file.
func (f *Follower) samples() [][]byte {
	const tailSize = 16 << 10
	read := func(from, size int64) []byte {
		b := make([]byte, size)
		n, _ := f.f.ReadAt(b, from) // what cannot be read now cannot be read later either
		return b[:n]
	}
	start := read(0, sniffSize)
	if f.off == 0 {
		return [][]byte{start}
	}
	from := max(0, f.off-tailSize)
	tail := read(from, f.off-from)
	if from > 0 {
		_, tail, _ = bytes.Cut(tail, []byte("\n")) // the first line may be a part of one
	}
	return [][]byte{tail, start}
}

// Follow calls fn for the records of a stream that is still being written, such as a [Follower], as
// soon as each arrives. Unless the options have a format, it detects the format from the lines that
// the file already has, or else from the first lines that arrive. It ends with the stream.
func (in *Input) Follow(r io.Reader, name string, fn func(Source, *trace.Record) error) error {
	raw := &rawReader{r: r, n: in.read, ended: func() error { return nil }}
	text := newText(holesReader{raw})
	var samples [][]byte
	follower, ok := r.(*Follower)
	if ok {
		samples = slices.DeleteFunc(follower.samples(), func(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 })
	}
	if len(samples) == 0 { // wait for what comes first
		err := skipBlank(text.Reader)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log %s: %w", name, err)
		}
		first, _ := text.Peek(text.Buffered())
		samples = [][]byte{first}
	}
	dec, err := in.followDecoder(text, samples)
	if err != nil {
		return err
	}
	if lines, isLines := dec.(*lineDecoder); isLines {
		lines.whole = ok // the writer may have been about to write the rest
	}
	err = in.records(context.Background(), dec, name, fn)
	if raw.err != nil {
		return fmt.Errorf("read log %s: %w", name, raw.err)
	}
	return err
}

// followDecoder returns the decoder of a stream with samples of it. The first sample with a known
// format counts.
func (in *Input) followDecoder(r text, samples [][]byte) (dec decoder, err error) {
	for _, sample := range samples {
		dec, err = in.decoder(context.Background(), r, sample)
		lines, ok := dec.(*lineDecoder)
		if err != nil || !ok || lines.parse != nil {
			return dec, err
		}
		lines.uris = nil // URIs have no times
		known := newLineDecoder(newText(bytes.NewReader(sample)), "", in.o.Now)
		for len(known.parse) == 0 && known.next() == nil {
			if err := known.find(); err != nil {
				break
			}
		}
		if lines.parse = known.parse; lines.parse != nil {
			break
		}
	}
	return dec, nil
}
