package store

import (
	"time"

	"example.org/slipway/workload/trace"
)

// Method is an HTTP method of a registry. The numbers are stored nowhere.
type Method uint8

// These are the methods. OtherMethod stands for all methods that a registry does not
// know.
const (
	OtherMethod Method = iota
	GET
	HEAD
	PUT
	PATCH
	POST
	DELETE
)

// ParseMethod returns a method by its name.
func ParseMethod(s string) Method {
	switch s {
	case "GET":
		return GET
	case "HEAD":
		return HEAD
	case "PUT":
		return PUT
	case "PATCH":
		return PATCH
	case "POST":
		return POST
	case "DELETE":
		return DELETE
	}
	return OtherMethod
}

// String returns the method's name.
func (m Method) String() string {
	names := [...]string{"OTHER", "GET", "HEAD", "PUT", "PATCH", "POST", "DELETE"}
	if int(m) < len(names) {
		return names[m]
	}
	return names[OtherMethod]
}

// Symbol stands for a string of a store. Within one open [Store], equal strings of the
// same table have equal symbols. None stands for the empty string.
type Symbol uint32

// None is the symbol of the empty string in every table.
const None Symbol = 0

// Batch is a run of requests of one zone in the order of their arrival, by column. All
// requested columns have the same length; the others are nil. The receiver of a batch
// must not keep it, because the next one uses the same memory.
type Batch struct {
	Zone string
	// Time is when the request arrived, in microseconds since 1970 in UTC.
	Time []int64
	// Duration is the duration of the request in microseconds, or -1 if the source lacks
	// it.
	Duration []int64
	// Size is the content's size in bytes, in whichever direction it went, or -1 if the
	// source lacks it.
	Size   []int64
	Method []Method
	Kind   []trace.Kind
	// Status is the HTTP status, or 0 if the source lacks it.
	Status []uint16
	// Host is the server that answered, and Client is the client that asked. They are in
	// tables "hosts" and "clients".
	Host, Client []Symbol
	// Repo is the repository, Namespace its first segment. Both are in table "repos".
	Repo, Namespace []Symbol
	// Ref is the tag, the digest or the upload's id, see [trace.Target]. Digest is the
	// content's digest if it is known: of a blob, of a manifest by digest, and of an
	// upload if the source has it. Both are in table "refs", so that a blob's GET and the
	// PUT that brought it have the same symbol.
	Ref, Digest []Symbol
	// Agent is the user agent. It is in table "agents".
	Agent []Symbol
}

// Len returns the number of requests.
func (b *Batch) Len() int { return len(b.Time) }

// At returns the time of request i.
func (b *Batch) At(i int) time.Time { return time.UnixMicro(b.Time[i]).UTC() }

// Push reports whether request i ends a push of content: a PUT, or a POST that carried a
// whole blob. A POST that mounts a blob is answered with 201 too, but carries nothing. It
// needs the columns of method, kind, status and size.
func (b *Batch) Push(i int) bool {
	return b.Method[i] == PUT || b.Method[i] == POST && b.Kind[i] == trace.Upload && b.Status[i] == 201 && b.Size[i] > 0
}
