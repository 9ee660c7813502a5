// Package fuse is what the FUSE servers of a node have in common: the wire
// format as far as they need it, the descriptor of /dev/fuse, the mounts, and
// the connection with its requests in work and its hand-over from one process to
// the next.
//
// The connection lives as long as some process holds the descriptor. A server
// that is killed breaks nothing where the kernel can send the requests again that
// were not answered (Linux 6.9): its successor asks for them with
// [Conn.Negotiate]. What the files are, and what a successor must know of them,
// is left to the packages that serve: poolfs the contents of images, volfs their
// volumes.
//
// A process that serves must not start a program that lies on what it serves,
// must not map a file of it, and must not open one with package os, which adds it
// to Go's poller: the kernel asks the server about each of them while it holds
// what the server needs to answer.
package fuse

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// The FUSE protocol. Sizes and offsets are those of include/uapi/linux/fuse.h,
// little endian on every machine Slipway runs on.
const (
	protoMajor    = 7
	protoMinor    = 40 // the newest revision these servers know: passthrough and RESEND
	protoMinorMin = 31 // Linux 5.4; older kernels have other sizes of answers

	inHeaderLen = 40 // len u32, opcode u32, unique u64, node u64, uid u32, gid u32, pid u32, extensions u16 (8 bytes each), pad
	attrLen     = 88

	uniqueResend = 1 << 63 // set by the kernel in requests it sends again
	notifyInval  = 2       // FUSE_NOTIFY_INVAL_INODE
	notifyResend = 7       // FUSE_NOTIFY_RESEND

	// OutHeaderLen is what every answer begins with: len u32, negative errno i32,
	// unique u64.
	OutHeaderLen = 16
	// RootNode is the node id of the root directory.
	RootNode = 1
	// MaxRead and MaxWrite bytes at once: the most that kernels do as they come.
	MaxRead  = 1 << 20
	MaxWrite = 1 << 20
)

// Opcode says what a request asks for.
type Opcode uint32

// The kinds of requests that a server of ours may tell apart.
const (
	OpLookup      Opcode = 1
	OpForget      Opcode = 2
	OpGetattr     Opcode = 3
	OpSetattr     Opcode = 4
	OpSymlink     Opcode = 6
	OpMknod       Opcode = 8
	OpMkdir       Opcode = 9
	OpUnlink      Opcode = 10
	OpRmdir       Opcode = 11
	OpRename      Opcode = 12
	OpLink        Opcode = 13
	OpOpen        Opcode = 14
	OpRead        Opcode = 15
	OpWrite       Opcode = 16
	OpStatfs      Opcode = 17
	OpRelease     Opcode = 18
	OpFsync       Opcode = 20
	OpFlush       Opcode = 25
	OpInit        Opcode = 26
	OpOpendir     Opcode = 27
	OpReaddir     Opcode = 28
	OpReleasedir  Opcode = 29
	OpFsyncdir    Opcode = 30
	OpAccess      Opcode = 34
	OpCreate      Opcode = 35
	OpInterrupt   Opcode = 36
	OpDestroy     Opcode = 38
	OpBatchForget Opcode = 42
	OpFallocate   Opcode = 43
	OpRename2     Opcode = 45
)

// What a connection can agree on in INIT, and what an answer to OPEN can say.
const (
	FlagAsyncRead      = 1 << 0
	FlagBigWrites      = 1 << 5
	FlagAsyncDIO       = 1 << 15
	FlagParallelDirops = 1 << 18
	FlagAbortError     = 1 << 21
	FlagMaxPages       = 1 << 22
	FlagInitExt        = 1 << 30
	FlagPassthrough    = 1 << 37
	FlagHasResend      = 1 << 39

	OpenKeepCache   = 1 << 1
	OpenNoFlush     = 1 << 5
	OpenPassthrough = 1 << 7

	// SetSize is the bit of Request.Valid for a new size.
	SetSize = 1 << 3
)

var le = binary.LittleEndian

// Request is a decoded request. Name and Data are of the buffer it came in and
// good until the function returns that was given it.
type Request struct {
	Op     Opcode
	Unique uint64 // as received: with the bit of a resent one; see Handle
	Node   uint64
	PID    uint32 // the asking thread as the mounter's pid namespace sees it, 0 if it does not

	Name   []byte // LOOKUP: what comes before the NUL
	Handle uint64 // READ, WRITE, FLUSH, FSYNC, FALLOCATE, RELEASE; of OPEN: the number that it may be given
	Off    int64  // READ, READDIR, WRITE, FALLOCATE
	Len    int64  // FALLOCATE
	Size   uint32 // READ, READDIR
	Flags  uint32 // OPEN: of open(2); FALLOCATE: its mode
	Data   []byte // WRITE
	Valid  uint32 // SETATTR: what is to be set
	target uint64 // INTERRUPT: unique of the request meant
	init   initRequest
}

// Resent reports whether the kernel sends a request again.
func (r *Request) Resent() bool { return r.Unique&uniqueResend != 0 }

// HandleOf is the number that an OPEN, asked under unique, may be given as its
// handle: it is the same when the request comes again, and no other has it.
func HandleOf(unique uint64) uint64 { return unique &^ uniqueResend }

type initRequest struct {
	major, minor, maxReadahead uint32
	flags                      uint64
}

var errShortRequest = errors.New("fuse: request is shorter than its kind needs")

// Parse decodes one request as read from /dev/fuse. It never reads outside b.
// After an error r.Unique is set if the header was complete, so that the request
// can be refused.
func Parse(b []byte, r *Request) error {
	*r = Request{}
	if len(b) < inHeaderLen {
		return errShortRequest
	}
	r.Op = Opcode(le.Uint32(b[4:]))
	r.Unique = le.Uint64(b[8:])
	r.Node = le.Uint64(b[16:])
	r.PID = le.Uint32(b[32:])
	if n := le.Uint32(b); uint64(n) != uint64(len(b)) {
		return errShortRequest
	}
	body := b[inHeaderLen:]
	ext := int(le.Uint16(b[36:])) * 8
	if ext > len(body) {
		return errShortRequest
	}
	return r.parseBody(body[:len(body)-ext])
}

func (r *Request) parseBody(b []byte) error {
	if len(b) < r.Op.bodyLen() {
		return errShortRequest
	}
	switch r.Op {
	case OpLookup:
		for i, c := range b {
			if c == 0 {
				r.Name = b[:i:i]
				return nil
			}
		}
		return errShortRequest
	case OpOpen:
		r.Flags = le.Uint32(b)
		r.Handle = HandleOf(r.Unique)
	case OpRead, OpReaddir:
		r.Handle, r.Off, r.Size = le.Uint64(b), int64(le.Uint64(b[8:])), le.Uint32(b[16:])
	case OpWrite:
		r.Handle, r.Off = le.Uint64(b), int64(le.Uint64(b[8:]))
		n := le.Uint32(b[16:])
		if uint64(len(b)) < 40+uint64(n) {
			return errShortRequest
		}
		r.Data = b[40 : 40+n : 40+n]
	case OpFallocate:
		r.Handle, r.Off, r.Len = le.Uint64(b), int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:]))
		r.Flags = le.Uint32(b[24:])
	case OpSetattr:
		r.Valid = le.Uint32(b)
	case OpRelease, OpFlush, OpFsync:
		r.Handle = le.Uint64(b)
	case OpInterrupt:
		r.target = le.Uint64(b)
	case OpInit:
		r.parseInit(b)
	}
	return nil
}

func (r *Request) parseInit(b []byte) {
	r.init = initRequest{major: le.Uint32(b), minor: le.Uint32(b[4:]), maxReadahead: le.Uint32(b[8:]), flags: uint64(le.Uint32(b[12:]))}
	if r.init.flags&FlagInitExt != 0 && len(b) >= 20 {
		r.init.flags |= uint64(le.Uint32(b[16:])) << 32
	}
}

// bodyLen is the least a request of this kind has behind its header.
func (o Opcode) bodyLen() int {
	switch o {
	case OpSetattr:
		return 88
	case OpRead, OpReaddir, OpWrite:
		return 40
	case OpFallocate:
		return 32
	case OpRelease, OpFlush:
		return 24
	case OpInit, OpFsync:
		return 16
	case OpInterrupt, OpOpen:
		return 8
	}
	return 0
}

// PutHeader writes the header of an answer whose whole length is len(b).
func PutHeader(b []byte, unique uint64, errno unix.Errno) {
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], uint32(-int32(errno)))
	le.PutUint64(b[8:], unique)
}
