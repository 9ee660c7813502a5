package poolfs

import (
	"example.org/slipway/node/fuse"
)

const (
	maxReadahead  = 1 << 20
	maxBackground = 64 // requests of read-ahead and the like that the kernel sends at once
)

// initOptions are what the pool wants of its connection: of what the kernel offers, what it has a use for.
func (s *Server) initOptions() fuse.InitOptions {
	o := fuse.InitOptions{
		Want: fuse.FlagAsyncRead | fuse.FlagParallelDirops, NoResend: s.o.NoResend,
		MaxReadahead: maxReadahead, MaxBackground: maxBackground, MaxRead: s.o.MaxReadBytes,
		MaxWrite: 4096, // the least the kernel takes: it keeps the read buffers small
		Settled:  s.table.settled(), Save: s.table.setInit,
	}
	if !s.o.NoPassthrough {
		o.Want |= fuse.FlagPassthrough
	}
	return o
}
