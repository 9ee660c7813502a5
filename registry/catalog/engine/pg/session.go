// Package pg is what the catalogue needs to know of PostgreSQL: how its sessions are made, what
// their failures mean, and how it wants queries that were written for both databases.
package pg

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

// sessionSettings let the server end what its client will not: a transaction whose
// process stands still or cannot be reached holds the lock that all writers wait
// for. A writer waits for the lock in short turns, to tell a server that does not
// answer from one that is busy.
const sessionSettings = `SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '3s'; SET statement_timeout = '11min';
	SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '10s'`

// errConnectionString is all that is said of a connection string that cannot be read:
// what is wrong with it may be that its password stands in another place.
var errConnectionString = errors.New("the connection string cannot be read, which is not shown because of its password: " +
	"write postgres://USER:PASSWORD@HOST:5432/DATABASE, with %40 for @ and %3A for : in the password, or host=HOST user=USER password='PASSWORD' dbname=DATABASE")

// Config is how connections are made, each within a time.
func Config(dsn string, within time.Duration) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errConnectionString
	}
	// All of several servers must have had their turn within the time that connecting
	// may take: the first may be the one whose machine is gone, which answers nothing.
	if each := within / time.Duration(1+hosts(config)); config.ConnectTimeout == 0 || config.ConnectTimeout > each {
		config.ConnectTimeout = each
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "slipway"
	}
	if config.ValidateConnect == nil { // of several servers, the one that takes changes
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	config.AfterConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		return c.Exec(ctx, sessionSettings).Close()
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}
		if strings.HasPrefix(network, "tcp") {
			d.Control = giveUpUnanswered
		}
		return d.DialContext(ctx, network, addr)
	}
	return config, nil
}

// hosts is how many servers a connection string names beside the first.
func hosts(config *pgx.ConnConfig) int {
	type server struct {
		host string
		port uint16
	}
	first := server{config.Host, config.Port}
	others := map[server]bool{}
	for _, f := range config.Fallbacks { // with TLS and without are two of these
		if s := (server{f.Host, f.Port}); s != first {
			others[s] = true
		}
	}
	return len(others)
}

// giveUpUnanswered makes the kernel end a connection on which nothing that was
// sent is acknowledged for 10 s.
func giveUpUnanswered(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000)
	}); e != nil {
		return e
	}
	return err
}

// IsLost tells a connection that broke, or a server that went away, from an
// answer.
func IsLost(err error) bool {
	if err == nil {
		return false
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		switch {
		case answer.SeverityUnlocalized == "FATAL", answer.SeverityUnlocalized == "PANIC", strings.HasPrefix(answer.Code, "08"):
			return true
		}
		switch answer.Code {
		case "57P01", "57P02", "57P03", "53300", "25006": // it ends, or begins, or is full, or has become a copy
			return true
		}
		return false
	}
	var connect *pgconn.ConnectError
	var network net.Error
	for _, e := range []error{driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}

// IsCrowded is of a lock that was not to be had in time, and of a transaction that
// the server undid for the sake of another.
func IsCrowded(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Code {
	case "55P03", "40001", "40P01":
		return true
	}
	return false
}

// IsRefusal tells a server that will not have us from one that is not ready.
func IsRefusal(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (strings.HasPrefix(answer.Code, "28") || strings.HasPrefix(answer.Code, "3D") || strings.HasPrefix(answer.Code, "42"))
}
