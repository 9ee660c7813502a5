// Package pg holds what the catalogue needs to know about PostgreSQL: how to open its
// sessions, what its failures mean, and how to convert queries that were written for both
// databases.
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

// sessionSettings makes the server end a session if the client does not. A transaction
// holds the lock that all writers wait for, even if its process stands still or cannot be
// reached. A writer waits for the lock in short turns, to distinguish a server that does
// not answer from a busy one.
const sessionSettings = `SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = '3s'; SET statement_timeout = '11min';
	SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; SET tcp_user_timeout = '10s'`

// errConnectionString is the whole error for a connection string that cannot be read. It
// does not say what is wrong, because the error may be that the password is in the wrong
// place.
var errConnectionString = errors.New("the connection string cannot be read, which is not shown because of its password: " +
	"write postgres://USER:PASSWORD@HOST:5432/DATABASE, with %40 for @ and %3A for : in the password, or host=HOST user=USER password='PASSWORD' dbname=DATABASE")

// Config returns the configuration of connections; The argument named within is the
// longest time that connecting may take.
func Config(dsn string, within time.Duration) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errConnectionString
	}
	// If there are several servers, each must get its turn within the time that
	// connecting may take. The machine of the first may be down, so that it does not
	// answer at all.
	if each := within / time.Duration(1+hosts(config)); config.ConnectTimeout == 0 || config.ConnectTimeout > each {
		config.ConnectTimeout = each
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "slipway"
	}
	if config.ValidateConnect == nil { // of several servers, use the one that accepts changes
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

// hosts returns how many servers a connection string names besides the first.
func hosts(config *pgx.ConnConfig) int {
	type server struct {
		host string
		port uint16
	}
	first := server{config.Host, config.Port}
	others := map[server]bool{}
	for _, f := range config.Fallbacks { // the attempts with TLS and without it are two entries
		if s := (server{f.Host, f.Port}); s != first {
			others[s] = true
		}
	}
	return len(others)
}

// giveUpUnanswered makes the kernel end a connection if nothing that was sent is
// acknowledged for 10 s.
func giveUpUnanswered(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000)
	}); e != nil {
		return e
	}
	return err
}

// IsLost reports whether an error means that a connection broke or a server went away. It
// returns false for an answer of the server.
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
		case "57P01", "57P02", "57P03", "53300", "25006": // the server ends, starts, is full, or has become a standby
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

// IsCrowded reports whether a lock was not available in time, or the server undid the
// transaction in favour of another one.
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

// IsRefusal reports whether a server refuses this client, unlike a server that is not
// ready yet.
func IsRefusal(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (strings.HasPrefix(answer.Code, "28") || strings.HasPrefix(answer.Code, "3D") || strings.HasPrefix(answer.Code, "42"))
}
