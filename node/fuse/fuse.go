// Package fuse is the common part of a node's FUSE servers: the wire format as far as
// they need it, the descriptor of /dev/fuse, the mounts, and the connection with its
// requests and its hand-over from one process to the next.
//
// The connection lives as long as some process holds the descriptor. If the kernel can
// resend unanswered requests (Linux 6.9), killing a server breaks nothing: its successor
// asks for them with [Conn.Negotiate]. The packages that serve decide what the files are
// and what a successor must know of them: poolfs serves the contents of images, volfs
// their volumes.
//
// A process that serves must not start a program that lies on its own mount, must not map
// a file of the mount, and must not open such a file with package os, which adds the file
// to Go's poller. In each case the kernel sends the server a request while it holds
// something that the server needs to answer.
package fuse

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// These constants belong to the FUSE protocol. Sizes and offsets are from
// include/uapi/linux/fuse.h. Integers are little endian on every machine that Slipway
// runs on.
const (
	protoMajor    = 7
	protoMinor    = 40 // the newest revision these servers know: passthrough and RESEND
	protoMinorMin = 31 // Linux 5.4; answers of older kernels have other sizes

	inHeaderLen = 40 // len u32, opcode u32, unique u64, node u64, uid u32, gid u32, pid u32, extensions u16 (8 bytes each), pad
	attrLen     = 88

	uniqueResend = 1 << 63 // the kernel sets it in requests that it sends again
	notifyInval  = 2       // FUSE_NOTIFY_INVAL_INODE
	notifyResend = 7       // FUSE_NOTIFY_RESEND

	// OutHeaderLen is the length of the header of every answer: len u32, negative errno
	// i32, unique u64.
	OutHeaderLen = 16
	// RootNode is the node id of the root directory.
	RootNode = 1
	// MaxRead and MaxWrite are the most bytes in one request that kernels allow by
	// default.
	MaxRead  = 1 << 20
	MaxWrite = 1 << 20
)

// Opcode is the kind of a request.
type Opcode uint32

// These are the kinds of requests that our servers may distinguish.
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

// These are flags that a connection can agree on in INIT, and flags of an answer to OPEN.
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

	// SetSize is the bit of Request.Valid that says that the size is to be set.
	SetSize = 1 << 3
)

var le = binary.LittleEndian

// Request is a decoded request. Name and Data point into the buffer of the request. They
// are valid until the function that received the request returns.
type Request struct {
	Op     Opcode
	Unique uint64 // as received, so with the bit of a resent request; see HandleOf
	Node   uint64
	PID    uint32 // the requesting thread in the mounter's pid namespace, 0 if it is not visible there

	Name   []byte // LOOKUP: the bytes before the NUL
	Handle uint64 // READ, WRITE, FLUSH, FSYNC, FALLOCATE, RELEASE; OPEN: the handle that the file may get
	Off    int64  // READ, READDIR, WRITE, FALLOCATE
	Len    int64  // FALLOCATE
	Size   uint32 // READ, READDIR
	Flags  uint32 // OPEN: the flags of open(2); FALLOCATE: its mode
	Data   []byte // WRITE
	Valid  uint32 // SETATTR: the attributes to set
	target uint64 // INTERRUPT: unique of the interrupted request
	init   initRequest
}

// Resent reports whether the kernel has sent the request before.
func (r *Request) Resent() bool { return r.Unique&uniqueResend != 0 }

// HandleOf returns the number that the OPEN with this unique may use as its handle. The
// number is the same if the kernel resends the request, and no other OPEN has it.
func HandleOf(unique uint64) uint64 { return unique &^ uniqueResend }

type initRequest struct {
	major, minor, maxReadahead uint32
	flags                      uint64
}

var errShortRequest = errors.New("fuse: request is shorter than its kind needs")

// Parse decodes one request that was read from /dev/fuse. It never reads outside b. If it
// returns an error and the header was complete, r.Unique is set, so that the request can
// be refused.
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

// bodyLen returns the minimum length of a request of this kind after its header.
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
