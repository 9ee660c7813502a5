package tasks

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// DialIn returns a dialer for the network namespace of a process. The process must exist when
// DialIn is called. Root only.
func DialIn(pid int) (dial Dialer, done func(), err error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		dialled := make(chan result, 1)
		go func() {
			// The thread is never unlocked: it belongs to the other namespace
			// and ends with the goroutine.
			runtime.LockOSThread()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				dialled <- result{nil, fmt.Errorf("enter the network of process %d: %w", pid, err)}
				return
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", address)
			dialled <- result{conn, err}
		}()
		r := <-dialled
		return r.conn, r.err
	}, func() { ns.Close() }, nil
}
