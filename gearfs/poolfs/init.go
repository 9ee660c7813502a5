package poolfs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	maxReadahead  = 1 << 20
	maxBackground = 64 // requests of read-ahead and the like that the kernel sends at once
	congestion    = 48 // three quarters of it, as the kernel's own default
)

// negotiate brings the connection to where requests can be answered: it asks for the requests that a predecessor left
// unanswered, and waits for INIT if there was none yet.
func (s *Server) negotiate(ctx context.Context) error {
	resend := s.resend()
	if s.table.inited() {
		if !resend {
			return s.isolate()
		}
		return nil
	}
	stop := context.AfterFunc(ctx, s.dev.stop)
	defer stop()
	buf := make([]byte, readBufferLen)
	var r request
	for !s.table.inited() {
		n, err := s.dev.read(buf)
		if errors.Is(err, errStopped) {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := parse(buf[:n], &r); err != nil || r.op != opInit {
			s.log.Warn("FUSE request before INIT", "opcode", r.op)
			s.fail(r.unique, unix.EIO)
			continue
		}
		if err := s.init(&r); err != nil {
			return err
		}
	}
	if s.table.flags()&flagHasResend == 0 {
		return s.isolate()
	}
	return nil
}

// resend asks the kernel to send again what it has no answer to. It is false where the kernel cannot.
func (s *Server) resend() bool {
	if s.o.NoResend || s.table.inited() && s.table.flags()&flagHasResend == 0 {
		return false
	}
	var b [outHeaderLen]byte
	putHeader(b[:], 0, 0)
	le.PutUint32(b[4:], notifyResend) // unique 0 makes it a notification, whose code is positive
	return s.dev.write(b[:]) == nil
}

// isolate lets this server work on a clone of the connection. Where requests cannot be sent again, those that a killed
// server has in hand would never be answered; on a clone of its own they fail with it, and only they.
func (s *Server) isolate() error {
	c, err := s.master.clone()
	if err == nil {
		s.dev = c
	}
	return err
}

// init answers INIT: of what the kernel offers, the pool takes what it has a use for.
func (s *Server) init(r *request) error {
	in := r.init
	if in.major > protoMajor {
		var b [initAnswerLen]byte
		putInit(b[:], initAnswer{})
		s.answer(r.unique, b[:]) // it asks again with our major number
		return nil
	}
	if in.major < protoMajor || in.minor < protoMinorMin {
		s.fail(r.unique, unix.EPROTO)
		return fmt.Errorf("the kernel speaks FUSE %d.%d, at least %d.%d is needed", in.major, in.minor, protoMajor, protoMinorMin)
	}
	want := uint64(flagAsyncRead | flagParallelDirops | flagAbortError | flagMaxPages | flagInitExt)
	if !s.o.NoPassthrough {
		want |= flagPassthrough
	}
	if !s.o.NoResend {
		want |= flagHasResend
	}
	flags := in.flags & want
	if flags&flagInitExt == 0 {
		flags &= 1<<32 - 1
	}
	a := initAnswer{
		minor: min(in.minor, protoMinor), maxReadahead: maxReadahead, maxBackground: maxBackground, congestion: congestion,
		maxPages: uint16(s.o.MaxReadBytes / 4096), flags: flags,
	}
	if err := s.table.setInit(uint64(a.minor), flags); err != nil {
		s.fail(r.unique, unix.EIO)
		return err
	}
	var b [initAnswerLen]byte
	putInit(b[:], a)
	s.answer(r.unique, b[:])
	s.log.Info("pool connected", "kernel", fmt.Sprintf("%d.%d", in.major, in.minor),
		"passthrough", flags&flagPassthrough != 0, "resend", flags&flagHasResend != 0)
	return nil
}
