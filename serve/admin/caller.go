package admin

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// callerKey is the key of the user id of the process at the other end of the socket.
type callerKey struct{}

// withCaller notes who connected to the administration socket.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if cred := peerOf(c); cred != nil {
		return context.WithValue(ctx, callerKey{}, int(cred.Uid))
	}
	return ctx
}

// callerOf returns the name of the user who administers: the one who connected or, in the
// process that has the data root to itself, the user of this process.
func callerOf(ctx context.Context) string {
	uid, ok := ctx.Value(callerKey{}).(int)
	if !ok {
		uid = os.Geteuid()
	}
	name := strconv.Itoa(uid)
	if u, err := user.LookupId(name); err == nil {
		return u.Username
	}
	return name
}

// peerOf returns who is at the other end of a socket, or nil.
func peerOf(c net.Conn) *unix.Ucred {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || credErr != nil {
		return nil
	}
	return cred
}
