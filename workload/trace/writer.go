package trace

import (
	"bufio"
	"io"
	"sync"
	"time"
)

// Writer writes records to a log. All methods may run concurrently.
type Writer struct {
	format Format
	mu     sync.Mutex
	buf    *bufio.Writer
	dst    io.Writer
	line   []byte
	err    error
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once
}

// flushEvery bounds how long a record may wait in the buffer.
const flushEvery = time.Second

// NewWriter returns a Writer to w that buffers records for at most a second. Close
// flushes, and closes w if that is an io.Closer.
func NewWriter(w io.Writer, f Format) *Writer {
	t := &Writer{format: f, dst: w, buf: bufio.NewWriterSize(w, 64<<10), stop: make(chan struct{}), done: make(chan struct{})}
	go t.flushLoop()
	return t
}

func (t *Writer) flushLoop() {
	defer close(t.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.mu.Lock()
			t.keep(t.buf.Flush())
			t.mu.Unlock()
		case <-t.stop:
			return
		}
	}
}

// keep notes an error. The buffer is lost, and later records are written again: a disk
// that was full may have room by now.
func (t *Writer) keep(err error) {
	if err == nil {
		return
	}
	if t.err == nil {
		t.err = err
	}
	t.buf.Reset(t.dst)
}

// Write adds a record. A log that cannot be written must not stop the registry, so the
// first error is kept for Close and Err.
func (t *Writer) Write(r *Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.format == FormatTrace {
		t.line = r.AppendTrace(t.line[:0])
	} else {
		t.line = r.AppendCLF(t.line[:0])
	}
	_, err := t.buf.Write(t.line)
	t.keep(err)
}

// Err returns the first error of writing, if any.
func (t *Writer) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Close flushes what is buffered.
func (t *Writer) Close() error {
	t.once.Do(func() {
		close(t.stop)
		<-t.done
		t.mu.Lock()
		defer t.mu.Unlock()
		t.keep(t.buf.Flush())
		if c, ok := t.dst.(io.Closer); ok {
			t.keep(c.Close())
		}
	})
	return t.Err()
}
