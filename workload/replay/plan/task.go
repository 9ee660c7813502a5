// Package plan turns the requests of a trace into the tasks of a replay: a stream of
// [Task], each with its time, its client and its steps.
//
// It reads the trace twice. The first reading, the survey, finds out what the names stand
// for: how large each blob is, which layers a manifest has, which upload brought which
// blob, and what a registry must hold before the first request. It computes the real
// digests and leaves a side table of 48 bytes for each name. The second reading makes the
// tasks from the trace and the table alone. Its memory does not grow with the number of
// requests.
package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Level is how much of the protocol is replayed.
type Level uint8

// These are the levels.
const (
	// L0 sends blobs only: each GET and PUT of a manifest or a layer becomes a GET or PUT
	// of a blob in one repository, as in the replayer of Anwar et al. (FAST'18).
	L0 Level = iota
	// L1 sends each request as recorded: pings, HEADs, uploads in their parts, manifests
	// with layers, tags.
	L1
	// L2 sends pulls and pushes. A pull gets the manifest and then its layers, three at
	// once. A push puts the manifest when the registry has all its layers.
	L2
)

// ParseLevel reads "L0", "L1" or "L2".
func ParseLevel(s string) (Level, error) {
	switch s {
	case "L0", "l0", "0":
		return L0, nil
	case "L1", "l1", "1":
		return L1, nil
	case "L2", "l2", "2":
		return L2, nil
	}
	return 0, fmt.Errorf("unknown level %q: use L0 (blobs), L1 (every request) or L2 (pulls and pushes)", s)
}

// String returns "L0", "L1" or "L2".
func (l Level) String() string { return fmt.Sprintf("L%d", uint8(l)) }

// Op is what a step does.
type Op uint8

// These are the operations.
const (
	// OpRequest is one request without a body: a ping, a GET, a HEAD, a list.
	OpRequest Op = iota
	// OpPutManifest puts Body as a manifest under Ref, under its digest if Ref is empty.
	OpPutManifest
	// OpOpen begins an upload.
	OpOpen
	// OpPatch sends the next part of an upload: To bytes, or one of Parts equal parts.
	OpPatch
	// OpClose sends what an upload still lacks and names its digest.
	OpClose
	// OpPush is a whole upload: POST and PUT. If Ask is set, a HEAD comes first, and the
	// upload ends there if the registry has the blob. MountFrom is a repository to mount
	// from.
	OpPush
	opCount
)

// Step is one thing that a task does: a request, or a few requests that belong together.
type Step struct {
	// Stage orders the steps of a task. The steps of a stage begin when all steps of the
	// stage before have ended, and at most [Task.Parallel] run at once.
	Stage uint8
	// After is the least time from the beginning of the task to the beginning of the
	// step.
	After time.Duration
	Op    Op
	// Method and Kind are as in the trace.
	Method store.Method
	Kind   trace.Kind
	// Repo is a valid repository name; Ref a tag or digest. MountFrom is another
	// repository that has the blob.
	Repo, Ref, MountFrom string
	// Key, Size and Digest describe the content. A zero digest is unknown. Size is in
	// bytes and negative if unknown.
	Key    uint64
	Size   int64
	Digest [32]byte
	// From and To bound the bytes of a range request; To 0 means none. For a PATCH, To is
	// how many bytes it sends, 0 for an equal part.
	From, To int64
	// Upload is the same for all parts of an upload, and Parts is how many of them are PATCHes.
	// It is 0 outside of uploads.
	Upload uint64
	Parts  uint16
	// Status is what the recorded registry answered; 0 if unknown.
	Status uint16
	// Ask sends a HEAD before a push.
	Ask bool
	// Bare asks for /v2 without the slash at its end.
	Bare bool
	// Target is the index of the registry that gets the request.
	Target uint8
	// Body and MediaType are the content and the media type of a manifest. Body may also
	// be the content of a small blob.
	Body      []byte
	MediaType string
}

// Task is what is sent at one time by one client.
type Task struct {
	// ID numbers the tasks of a plan from 0 on, in the order of their time.
	ID int64
	// At is when the task begins, counted from the beginning of the run.
	At time.Duration
	// Client is a hash of the client's name.
	Client uint64
	// Session marks the pulls and pushes of L2.
	Session Session
	// Parallel is how many steps of a stage run at once; 0 means 1.
	Parallel uint8
	// Steps is never empty.
	Steps []Step
}

// Session is what kind of session a task is.
type Session uint8

// These are the kinds of session.
const (
	Single Session = iota
	Pull
	Push
)

// Alone reports whether the task is a single step and not a session that has a sample for
// the whole.
func (t *Task) Alone() bool { return len(t.Steps) == 1 && t.Session == Single }

// maxField bounds the strings and bodies of a decoded task, in bytes. The protocol lets
// manifests have 4 MiB.
const maxField = 8 << 20

// maxSteps bounds the steps of a decoded task.
const maxSteps = 1 << 16

// AppendTask appends the binary form of a task. All numbers are varints, and each string
// follows its length.
func AppendTask(b []byte, t *Task) []byte {
	b = binary.AppendVarint(b, t.ID)
	b = binary.AppendVarint(b, int64(t.At))
	b = binary.AppendUvarint(b, t.Client)
	b = append(b, byte(t.Session), t.Parallel)
	b = binary.AppendUvarint(b, uint64(len(t.Steps)))
	for i := range t.Steps {
		b = appendStep(b, &t.Steps[i])
	}
	return b
}

func appendStep(b []byte, s *Step) []byte {
	flags := byte(0)
	if s.Ask {
		flags |= 1
	}
	if s.Bare {
		flags |= 2
	}
	b = append(b, s.Stage, byte(s.Op), byte(s.Method), byte(s.Kind), s.Target, flags)
	for _, f := range []string{s.Repo, s.Ref, s.MountFrom, s.MediaType} {
		b = binary.AppendUvarint(b, uint64(len(f)))
		b = append(b, f...)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Body)))
	b = append(b, s.Body...)
	b = binary.AppendUvarint(b, s.Key)
	b = binary.AppendVarint(b, s.Size)
	b = append(b, s.Digest[:]...)
	b = binary.AppendVarint(b, s.From)
	b = binary.AppendVarint(b, s.To)
	b = binary.AppendUvarint(b, s.Upload)
	b = binary.AppendUvarint(b, uint64(s.Parts))
	b = binary.AppendUvarint(b, uint64(s.Status))
	return binary.AppendVarint(b, int64(s.After))
}

// ErrEncoding is returned for a task that cannot be decoded.
var ErrEncoding = errors.New("malformed task")

// decoder reads the binary form. After an error it returns only zero values.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) || n > maxField {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) byte() byte {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

// DecodeTask reads a task and returns what follows it. The task shares no memory
// with b.
func DecodeTask(b []byte) (*Task, []byte, error) {
	d := &decoder{b: b}
	t := &Task{ID: d.varint(), At: time.Duration(d.varint()), Client: d.uvarint()}
	t.Session, t.Parallel = Session(d.byte()), d.byte()
	n := d.uvarint()
	// The shortest step has 48 bytes, so there cannot be more steps than that.
	if d.bad || n == 0 || n > maxSteps || n > uint64(len(d.b)) || t.Session > Push || t.ID < 0 {
		return nil, nil, ErrEncoding
	}
	for range n {
		t.Steps = append(t.Steps, Step{})
		if !decodeStep(d, &t.Steps[len(t.Steps)-1]) {
			return nil, nil, ErrEncoding
		}
	}
	return t, d.b, nil
}

func decodeStep(d *decoder, s *Step) bool {
	s.Stage, s.Op = d.byte(), Op(d.byte())
	s.Method, s.Kind = store.Method(d.byte()), trace.Kind(d.byte())
	s.Target = d.byte()
	flags := d.byte()
	s.Ask, s.Bare = flags&1 != 0, flags&2 != 0
	for _, f := range []*string{&s.Repo, &s.Ref, &s.MountFrom, &s.MediaType} {
		*f = string(d.take(d.uvarint()))
	}
	if p := d.take(d.uvarint()); len(p) > 0 {
		s.Body = append([]byte(nil), p...)
	}
	s.Key, s.Size = d.uvarint(), d.varint()
	copy(s.Digest[:], d.take(uint64(len(s.Digest))))
	s.From, s.To, s.Upload = d.varint(), d.varint(), d.uvarint()
	parts, status := d.uvarint(), d.uvarint()
	s.After = time.Duration(d.varint())
	if d.bad || s.After < 0 || s.After > maxSession || parts > math.MaxUint16 || status > math.MaxUint16 || s.Op >= opCount || s.From < 0 || s.To < 0 {
		return false
	}
	s.Parts, s.Status = uint16(parts), uint16(status)
	return true
}
