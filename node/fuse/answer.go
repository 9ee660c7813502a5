package fuse

// These are the lengths of answers with their headers. The functions below fill in an
// answer except for its header. The buffer must be zeroed.
const (
	EntryLen   = OutHeaderLen + 40 + attrLen
	AttrLen    = OutHeaderLen + 16 + attrLen
	OpenLen    = OutHeaderLen + 16
	WriteLen   = OutHeaderLen + 8
	StatfsLen  = OutHeaderLen + 80
	initLen    = OutHeaderLen + 64
	direntHead = 24 // of a directory entry, before its name
)

// Attr is what stat shows of a node. The owner is root.
type Attr struct {
	Node uint64
	Size int64  // bytes
	Mode uint32 // including the type bits
}

func (a Attr) put(b []byte) {
	le.PutUint64(b, a.Node)
	le.PutUint64(b[8:], uint64(a.Size))
	le.PutUint64(b[16:], uint64(a.Size+511)/512)
	le.PutUint32(b[60:], a.Mode)
	le.PutUint32(b[64:], 1) // nlink
	le.PutUint32(b[80:], 4096)
}

// PutEntry answers LOOKUP. The kernel may cache the name for nameSeconds and the
// attributes for attrSeconds.
func PutEntry(b []byte, a Attr, nameSeconds, attrSeconds uint64) {
	le.PutUint64(b[OutHeaderLen:], a.Node)
	le.PutUint64(b[OutHeaderLen+16:], nameSeconds)
	le.PutUint64(b[OutHeaderLen+24:], attrSeconds)
	a.put(b[OutHeaderLen+40:])
}

// PutAttr answers GETATTR and SETATTR.
func PutAttr(b []byte, a Attr, seconds uint64) {
	le.PutUint64(b[OutHeaderLen:], seconds)
	a.put(b[OutHeaderLen+16:])
}

// PutOpen answers OPEN. backing is 0, or the number of a file that the kernel reads
// itself.
func PutOpen(b []byte, handle uint64, flags uint32, backing int32) {
	le.PutUint64(b[OutHeaderLen:], handle)
	le.PutUint32(b[OutHeaderLen+8:], flags)
	le.PutUint32(b[OutHeaderLen+12:], uint32(backing))
}

// PutWrite answers WRITE: n bytes were written.
func PutWrite(b []byte, n uint32) { le.PutUint32(b[OutHeaderLen:], n) }

// PutStatfs answers STATFS for a file system that has blocks of 4,096 bytes and does not
// count them.
func PutStatfs(b []byte, maxName uint32) {
	le.PutUint32(b[OutHeaderLen+40:], 4096) // bsize
	le.PutUint32(b[OutHeaderLen+44:], maxName)
	le.PutUint32(b[OutHeaderLen+48:], 4096) // frsize
}

// AppendDirent appends a directory entry to an answer to READDIR and reports whether it
// did. It appends nothing if the answer would be longer than limit bytes. next is the
// offset at which a later READDIR continues after the entry.
func AppendDirent(b []byte, limit int, a Attr, next uint64, name string) ([]byte, bool) {
	n := direntHead + len(name)
	padded := (n + 7) &^ 7
	if len(b)+padded > limit {
		return b, false
	}
	at := len(b)
	b = append(b, make([]byte, padded)...)
	le.PutUint64(b[at:], a.Node)
	le.PutUint64(b[at+8:], next)
	le.PutUint32(b[at+16:], uint32(len(name)))
	le.PutUint32(b[at+20:], a.Mode>>12)
	copy(b[at+direntHead:], name)
	return b, true
}

// initAnswer is what a connection agrees on in INIT.
type initAnswer struct {
	minor, maxReadahead, maxWrite       uint32
	maxBackground, congestion, maxPages uint16
	flags                               uint64
}

func putInit(b []byte, a initAnswer) {
	o := b[OutHeaderLen:]
	le.PutUint32(o, protoMajor)
	le.PutUint32(o[4:], a.minor)
	le.PutUint32(o[8:], a.maxReadahead)
	le.PutUint32(o[12:], uint32(a.flags))
	le.PutUint16(o[16:], a.maxBackground)
	le.PutUint16(o[18:], a.congestion)
	le.PutUint32(o[20:], a.maxWrite)
	le.PutUint32(o[24:], 1) // time_gran, ns
	le.PutUint16(o[28:], a.maxPages)
	le.PutUint32(o[32:], uint32(a.flags>>32))
	if a.flags&FlagPassthrough != 0 {
		// This is the stacking depth of passthrough: the backing files lie on an ordinary
		// file system. Without passthrough it stays 0, so that a file system may be
		// mounted from a file of this one.
		le.PutUint32(o[36:], 1)
	}
}
