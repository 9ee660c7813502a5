package poolfs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The FUSE protocol, as far as a read-only file system of regular files in one level of directories needs it. Sizes
// and offsets are those of include/uapi/linux/fuse.h, little endian on every machine Slipway runs on.
const (
	protoMajor    = 7
	protoMinor    = 40 // the newest revision this server knows: passthrough and RESEND
	protoMinorMin = 31 // Linux 5.4; older kernels have other sizes of answers

	inHeaderLen  = 40 // len u32, opcode u32, unique u64, node u64, uid u32, gid u32, pid u32, extensions u16 (8 bytes each), pad
	outHeaderLen = 16 // len u32, negative errno i32, unique u64
	attrLen      = 88
	maxNameLen   = 62 // the longest name that can exist

	uniqueResend = 1 << 63 // set by the kernel in requests it sends again
	notifyResend = 7       // FUSE_NOTIFY_RESEND
)

type opcode uint32

const (
	opLookup      opcode = 1
	opForget      opcode = 2
	opGetattr     opcode = 3
	opOpen        opcode = 14
	opRead        opcode = 15
	opStatfs      opcode = 17
	opRelease     opcode = 18
	opInit        opcode = 26
	opOpendir     opcode = 27
	opReaddir     opcode = 28
	opReleasedir  opcode = 29
	opAccess      opcode = 34
	opInterrupt   opcode = 36
	opDestroy     opcode = 38
	opBatchForget opcode = 42
)

const (
	flagAsyncRead      = 1 << 0
	flagParallelDirops = 1 << 18
	flagAbortError     = 1 << 21
	flagMaxPages       = 1 << 22
	flagInitExt        = 1 << 30
	flagPassthrough    = 1 << 37
	flagHasResend      = 1 << 39

	openKeepCache   = 1 << 1
	openNoFlush     = 1 << 5
	openPassthrough = 1 << 7

	iocClone        = 0x8004e500 // _IOR(229, 0, uint32)
	iocBackingOpen  = 0x4010e501 // _IOW(229, 1, struct fuse_backing_map)
	iocBackingClose = 0x4004e502 // _IOW(229, 2, uint32)
)

// attrTTL is how long the kernel may remember a name and its attributes, in seconds. They are functions of the digest
// and never change; a day only bounds what a mistake could cost.
const attrTTL = 86400

var le = binary.LittleEndian

// request is a decoded request. It holds nothing of the buffer it came in.
type request struct {
	op     opcode
	unique uint64
	node   uint64
	pid    uint32 // the asking thread as the mounter's pid namespace sees it, 0 if it does not

	name    [maxNameLen]byte // LOOKUP
	nameLen int              // -1: a name that cannot exist
	fh      uint64           // READ, RELEASE
	off     int64            // READ
	size    uint32           // READ, READDIR
	target  uint64           // INTERRUPT: unique of the request meant
	init    initRequest      // INIT
}

type initRequest struct {
	major, minor, maxReadahead uint32
	flags                      uint64
}

var errShortRequest = errors.New("fuse: request is shorter than its kind needs")

// parse decodes one request as read from /dev/fuse. It never reads outside b. After an error r.unique is set if the
// header was complete, so that the request can be refused.
func parse(b []byte, r *request) error {
	*r = request{}
	if len(b) < inHeaderLen {
		return errShortRequest
	}
	r.op = opcode(le.Uint32(b[4:]))
	r.unique = le.Uint64(b[8:])
	r.node = le.Uint64(b[16:])
	r.pid = le.Uint32(b[32:])
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

func (r *request) parseBody(b []byte) error {
	if len(b) < r.op.bodyLen() {
		return errShortRequest
	}
	switch r.op {
	case opLookup:
		return r.parseName(b)
	case opRead, opReaddir:
		r.fh = le.Uint64(b)
		r.off = int64(le.Uint64(b[8:]))
		r.size = le.Uint32(b[16:])
	case opRelease:
		r.fh = le.Uint64(b)
	case opInterrupt:
		r.target = le.Uint64(b)
	case opInit:
		r.init = initRequest{major: le.Uint32(b), minor: le.Uint32(b[4:]), maxReadahead: le.Uint32(b[8:]), flags: uint64(le.Uint32(b[12:]))}
		if r.init.flags&flagInitExt != 0 && len(b) >= 20 {
			r.init.flags |= uint64(le.Uint32(b[16:])) << 32
		}
	}
	return nil
}

// bodyLen is the least a request of this kind has behind its header.
func (o opcode) bodyLen() int {
	switch o {
	case opRead, opReaddir:
		return 40
	case opRelease:
		return 24
	case opInit:
		return 16
	case opInterrupt, opOpen:
		return 8
	}
	return 0
}

// parseName takes the NUL-terminated name of a LOOKUP.
func (r *request) parseName(b []byte) error {
	for i, c := range b {
		if c == 0 {
			r.nameLen = -1
			if i <= maxNameLen {
				r.nameLen = copy(r.name[:], b[:i])
			}
			return nil
		}
	}
	return errShortRequest
}

// lookupNode tells the node a LOOKUP asks for: a directory below the root, or a file below a directory, whose full
// digest it returns. ok is false when no such name can exist.
func (r *request) lookupNode() (node uint64, name [32]byte, ok bool) {
	switch {
	case r.node == rootNode && r.nameLen == 2:
		var b [1]byte
		if !decodeHex(b[:], r.name[:2]) {
			return 0, name, false
		}
		return dirBase + uint64(b[0]), name, true
	case isDir(r.node) && r.nameLen == 62:
		name[0] = byte(r.node - dirBase)
		if !decodeHex(name[1:], r.name[:62]) {
			return 0, name, false
		}
		return NodeID(name), name, true
	}
	return 0, name, false
}

// decodeHex decodes lower-case hex only: one name per content.
func decodeHex(dst, src []byte) bool {
	for _, c := range src {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// putHeader writes the header of an answer whose whole length is len(b).
func putHeader(b []byte, unique uint64, errno unix.Errno) {
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], uint32(-int32(errno)))
	le.PutUint64(b[8:], unique)
}

// attr is what stat shows of a node.
type attr struct {
	node uint64
	size int64
	mode uint32 // with the type bits
}

func (a attr) put(b []byte) {
	le.PutUint64(b, a.node)
	le.PutUint64(b[8:], uint64(a.size))
	le.PutUint64(b[16:], uint64(a.size+511)/512)
	le.PutUint32(b[60:], a.mode)
	le.PutUint32(b[64:], 1) // nlink
	le.PutUint32(b[80:], 4096)
}

// Answers with their header, ready but for it.

const (
	entryAnswerLen  = outHeaderLen + 40 + attrLen
	attrAnswerLen   = outHeaderLen + 16 + attrLen
	openAnswerLen   = outHeaderLen + 16
	initAnswerLen   = outHeaderLen + 64
	statfsAnswerLen = outHeaderLen + 80
)

func putEntry(b []byte, a attr) {
	le.PutUint64(b[outHeaderLen:], a.node)
	le.PutUint64(b[outHeaderLen+16:], attrTTL)
	le.PutUint64(b[outHeaderLen+24:], attrTTL)
	a.put(b[outHeaderLen+40:])
}

func putAttr(b []byte, a attr) {
	le.PutUint64(b[outHeaderLen:], attrTTL)
	a.put(b[outHeaderLen+16:])
}

func putOpen(b []byte, fh uint64, flags uint32, backing int32) {
	le.PutUint64(b[outHeaderLen:], fh)
	le.PutUint32(b[outHeaderLen+8:], flags)
	le.PutUint32(b[outHeaderLen+12:], uint32(backing))
}

func putStatfs(b []byte) {
	le.PutUint32(b[outHeaderLen+40:], 4096) // bsize
	le.PutUint32(b[outHeaderLen+44:], maxNameLen)
	le.PutUint32(b[outHeaderLen+48:], 4096) // frsize
}

// initAnswer is what INIT settles.
type initAnswer struct {
	minor, maxReadahead                 uint32
	maxBackground, congestion, maxPages uint16
	flags                               uint64
}

func putInit(b []byte, a initAnswer) {
	o := b[outHeaderLen:]
	le.PutUint32(o, protoMajor)
	le.PutUint32(o[4:], a.minor)
	le.PutUint32(o[8:], a.maxReadahead)
	le.PutUint32(o[12:], uint32(a.flags))
	le.PutUint16(o[16:], a.maxBackground)
	le.PutUint16(o[18:], a.congestion)
	le.PutUint32(o[20:], 4096) // max_write, the least the kernel takes: it keeps the read buffers small
	le.PutUint32(o[24:], 1)    // time_gran, ns
	le.PutUint16(o[28:], a.maxPages)
	le.PutUint32(o[32:], uint32(a.flags>>32))
	if a.flags&flagPassthrough != 0 {
		le.PutUint32(o[36:], 1) // max_stack_depth: the backing files lie on an ordinary file system
	}
}

// errnoOf is what a process sees of a backend's error.
func errnoOf(err error) unix.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errKilled):
		return unix.EINTR
	case errors.Is(err, fs.ErrNotExist):
		return unix.ENOENT
	}
	return unix.EIO
}
