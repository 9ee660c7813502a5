package storage

import (
	"hash/maphash"
	"sync"

	"example.org/slipway/oci"
)

// Locks serialise publishing and deleting the object of a digest. A push holds one
// lock. The collector takes several, in the order of their index.
type Locks struct {
	stripes [256]sync.Mutex
}

var stripeSeed = maphash.MakeSeed()

func stripe(d oci.Digest) int { return int(maphash.String(stripeSeed, string(d)) % 256) }

func (l *Locks) Lock(d oci.Digest) (unlock func()) {
	m := &l.stripes[stripe(d)]
	m.Lock()
	return m.Unlock
}

// LockAll locks the stripes of all digests, lowest first, so that two callers cannot wait
// for each other.
func (l *Locks) LockAll(digests []oci.Digest) (unlock func()) {
	var held [256]bool
	for _, d := range digests {
		held[stripe(d)] = true
	}
	for i := range held {
		if held[i] {
			l.stripes[i].Lock()
		}
	}
	return func() {
		for i := range held {
			if held[i] {
				l.stripes[i].Unlock()
			}
		}
	}
}
