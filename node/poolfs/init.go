package poolfs

import (
	"example.org/slipway/node/fuse"
)

const (
	maxReadahead  = 1 << 20
	maxBackground = 64 // readahead and similar requests that the kernel sends at once
)

// initOptions returns the pool's wishes for its connection. Of the kernel's offers, it
// accepts what the pool can use.
func (s *Server) initOptions() fuse.InitOptions {
	o := fuse.InitOptions{
		Want: fuse.FlagAsyncRead | fuse.FlagParallelDirops, NoResend: s.o.NoResend,
		MaxReadahead: maxReadahead, MaxBackground: maxBackground, MaxRead: s.o.MaxReadBytes,
		MaxWrite: 4096, // the least that the kernel accepts: it keeps the read buffers small
		Settled:  s.table.settled(), Save: s.table.setInit,
	}
	if !s.o.NoPassthrough {
		o.Want |= fuse.FlagPassthrough
	}
	return o
}
