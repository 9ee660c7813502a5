package poolfs

import (
	"sync/atomic"

	"example.org/slipway/node/fuse"
)

type counters struct {
	lookups, opens, passthrough, cached, failed, reads, readBytes atomic.Uint64
	waiting                                                       atomic.Int64
}

// Stats are the counters of one server. A successor starts from zero, except for the last
// four fields, which belong to the connection.
type Stats struct {
	Lookups          uint64 `json:"lookups"`           // names looked up
	Opens            uint64 `json:"opens"`             // opens asked for
	OpensPassthrough uint64 `json:"opens_passthrough"` // answered with a file that the kernel reads itself
	OpensCached      uint64 `json:"opens_cached"`      // answered in cached mode
	OpensFailed      uint64 `json:"opens_failed"`      // answered with an error, or with EINTR because the process was being killed
	Reads            uint64 `json:"reads"`             // read requests in cached mode
	ReadBytes        uint64 `json:"read_bytes"`        // delivered in cached mode
	Resent           uint64 `json:"resent"`            // requests left by a predecessor
	Interrupts       uint64 `json:"interrupts"`        // signals to processes whose requests were waiting
	Waiting          int64  `json:"waiting"`           // opens that currently wait for the backend
	Open             int    `json:"open"`              // files open now
	Backing          int    `json:"backing"`           // files that are currently registered with the kernel
	Passthrough      bool   `json:"passthrough"`       // new files are opened in passthrough mode
	Resend           bool   `json:"resend"`            // the kernel can send requests again
}

// Stats returns the current counters.
func (s *Server) Stats() Stats {
	c := &s.stats
	r := Stats{
		Lookups: c.lookups.Load(), Opens: c.opens.Load(), OpensPassthrough: c.passthrough.Load(), OpensCached: c.cached.Load(),
		OpensFailed: c.failed.Load(), Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), Resent: s.conn.Resent(),
		Interrupts: s.conn.Interrupts(), Waiting: c.waiting.Load(),
	}
	t := &s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Open = len(t.opens)
	for _, ino := range t.inodes {
		if ino.backing > 0 {
			r.Backing++
		}
	}
	r.Passthrough = t.ready && t.passthrough()
	r.Resend = t.conn.flags&fuse.FlagHasResend != 0
	return r
}
