package replay

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A coordinator and a worker exchange frames. A frame has four bytes of length, little
// endian, one byte of type, and as many bytes as the length says.
type frameType byte

const (
	frameHello   frameType = iota + 1 // worker: JSON of hello
	frameProof                        // coordinator: JSON of proof
	frameWelcome                      // worker: JSON of welcome
	frameRefuse                       // worker: why, as text
	frameConfig                       // coordinator: JSON of config
	framePing                         // coordinator: 8 bytes that come back
	framePong                         // worker: the 8 bytes of the ping, then the worker's time in ns since 1970
	frameBegin                        // coordinator: JSON of phase
	frameTasks                        // coordinator: tasks
	frameEnd                          // coordinator: no more tasks of the phase
	frameSamples                      // worker: how many tasks were begun (8 bytes), samples
	frameDone                         // worker: the phase has ended
	frameBye                          // coordinator: the connection is not needed any more
)

// maxFrame bounds a frame, in bytes: a chunk of tasks is cut at maxChunk, behind
// which one task of manifests may still follow.
const maxFrame = 64 << 20

// maxGreeting bounds a frame until the peer has shown that it knows the secret.
const maxGreeting = 4 << 10

// link is one end of a connection. Frames are sent by any goroutine and received by
// one.
type link struct {
	conn net.Conn
	r    *bufio.Reader
	most int // bytes of a frame

	mu sync.Mutex
	w  *bufio.Writer
}

func newLink(c net.Conn) *link {
	return &link{conn: c, most: maxGreeting, r: bufio.NewReaderSize(c, 64<<10), w: bufio.NewWriterSize(c, 64<<10)}
}

// sendTimeout bounds the sending of one frame: a peer that takes none for so long is
// lost.
const sendTimeout = 30 * time.Second

func (l *link) send(t frameType, payload []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	var head [5]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(payload)))
	head[4] = byte(t)
	if _, err := l.w.Write(head[:]); err != nil {
		return err
	}
	if _, err := l.w.Write(payload); err != nil {
		return err
	}
	return l.w.Flush()
}

func (l *link) sendJSON(t frameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.send(t, b)
}

// receive returns the next frame, whose payload is the caller's. A wait of more than
// timeout is an error; 0 waits for ever.
func (l *link) receive(timeout time.Duration) (frameType, []byte, error) {
	deadline := time.Time{}
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	if err := l.conn.SetReadDeadline(deadline); err != nil {
		return 0, nil, err
	}
	return readFrame(l.r, l.most)
}

func readFrame(r io.Reader, most int) (frameType, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if int64(n) > int64(most) {
		return 0, nil, fmt.Errorf("a frame of %d bytes: the peer speaks something else", n)
	}
	// Memory is taken as bytes come, not as the length says.
	b, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return frameType(head[4]), b, err
}

// expect receives a frame of one type and decodes its JSON.
func (l *link) expect(t frameType, timeout time.Duration, v any) error {
	got, b, err := l.receive(timeout)
	if err != nil {
		return err
	}
	if got == frameRefuse {
		return fmt.Errorf("refused: %.200q", b)
	}
	if got != t {
		return errors.New("the peer speaks something else")
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return errors.New("the peer sent malformed JSON")
	}
	return nil
}
