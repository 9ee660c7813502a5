package backendtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// PostgresServer is a PostgreSQL server of a test.
type PostgresServer struct {
	*Daemon
	// Addr is where it listens, host:port.
	Addr string

	bin  string
	cred *syscall.SysProcAttr
	last atomic.Int64
}

// postgresDir is where Debian has the programs, by version.
const postgresDir = "/usr/lib/postgresql/*/bin"

// postgresBin is the directory of initdb and postgres.
func postgresBin(t testing.TB) string {
	t.Helper()
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err != nil { // the others lie beside the real one
			t.Fatal(err)
		}
		return filepath.Dir(p)
	}
	found, err := filepath.Glob(filepath.Join(postgresDir, "initdb"))
	if err != nil || len(found) == 0 {
		t.Skip("PostgreSQL is not installed: there is no initdb")
	}
	return filepath.Dir(found[len(found)-1])
}

// Postgres starts a server that ends with the test. It does not sync its files, as
// only a power cut would show that; settings such as "fsync=on" change it. As root
// it runs as the user postgres.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	s := &PostgresServer{bin: postgresBin(t), cred: &syscall.SysProcAttr{}}
	dir := shortDir(t)
	data := filepath.Join(dir, "data")
	if os.Getuid() == 0 {
		s.becomePostgres(t, dir)
	}
	s.run(t, "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
	port := strconv.Itoa(freePort(t))
	s.Addr = net.JoinHostPort("127.0.0.1", port)
	args := []string{"-D", data, "-p", port, "-h", "127.0.0.1", "-k", "",
		"-c", "shared_buffers=32MB", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	s.Daemon = start(t, dir, func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(s.bin, "postgres"), args...)
		attr := *s.cred
		cmd.SysProcAttr, cmd.Dir, cmd.Env = &attr, dir, os.Environ()
		return cmd
	}, s.Ready)
	t.Cleanup(s.Kill)
	return s
}

// Kill ends the server and its processes with SIGKILL, and returns when they are
// gone.
func (s *PostgresServer) Kill() {
	s.Signal(syscall.SIGSTOP) // or it would have more children than are found
	for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(time.Millisecond) {
		if state, _ := statOf(s.Pid()); state != "R" && state != "S" && state != "D" {
			break
		}
	}
	children := childrenOf(s.Pid())
	s.Daemon.Kill()
	for _, pid := range children {
		killOrphan(pid)
	}
}

// killOrphan ends a process of a server that is gone. A process that ends loses its
// command line before it lets go of the memory it shares, and a server does not start
// before that: so what counts is that it is a zombie.
func killOrphan(pid int) {
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
		switch state, _ := statOf(pid); {
		case state == "" || state == "Z" || state == "X":
			return
		case isPostgres(pid):
			_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has ended meanwhile
		case hasCommand(pid):
			return // somebody else has got its number
		}
	}
}

// childrenOf are the processes that a process has started.
func childrenOf(pid int) []int {
	found, _ := filepath.Glob("/proc/[0-9]*") // the pattern is a good one
	var out []int
	for _, path := range found {
		child, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if _, parent := statOf(child); parent == pid {
			out = append(out, child)
		}
	}
	return out
}

// statOf returns the state of a process, and its parent; "" and 0 if it has ended.
func statOf(pid int) (state string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// The name, which may hold anything, is in parentheses before them.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1]) // a number, says proc(5)
	return fields[0], parent
}

// isPostgres tells a process of a server that is running from another that has got
// its number. One that has just been made looks like its parent.
func isPostgres(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(b), "postgres")
}

// hasCommand tells a process that runs a program from one that is ending.
func hasCommand(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(b) > 0
}

// becomePostgres lets the server run as the user postgres: it refuses to be root.
func (s *PostgresServer) becomePostgres(t testing.TB, dir string) {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skipf("PostgreSQL cannot run as root, and there is no user postgres: %v", err)
	}
	uid, _ := strconv.Atoi(u.Uid) // numbers on Unix
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	s.cred.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// run runs one of PostgreSQL's programs to its end.
func (s *PostgresServer) run(t testing.TB, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.SysProcAttr, cmd.Dir = s.cred, "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// Ready tells whether the server answers; it is what Start takes.
func (s *PostgresServer) Ready(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "pg_isready"), "-q", "-d", s.DSN("postgres"))
	cmd.Dir = "/"
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("pg_isready: %w", err)
	}
	return nil
}

// Restart kills the server if it runs, and starts it again with its data.
func (s *PostgresServer) Restart() {
	s.Kill()
	s.Start(s.Ready)
}

// DSN is the connection string of a database.
func (s *PostgresServer) DSN(database string) string { return postgresDSN(s.Addr, database) }

// DSNThrough is DSN by way of another address, such as that of a proxy.
func (s *PostgresServer) DSNThrough(addr, database string) string { return postgresDSN(addr, database) }

func postgresDSN(addr, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// CreateDatabase makes an empty database with a name of its own and returns that.
// options are added to CREATE DATABASE, which ends with the server.
func (s *PostgresServer) CreateDatabase(t testing.TB, options ...string) string {
	t.Helper()
	name := "test" + strconv.FormatInt(s.last.Add(1), 10)
	s.SQL(t, "postgres", "CREATE DATABASE "+name+" TEMPLATE template0 "+strings.Join(options, " "))
	return name
}

// SQL runs statements in a database with psql and returns what they answer,
// without headings.
func (s *PostgresServer) SQL(t testing.TB, database, statements string) string {
	t.Helper()
	return strings.TrimSpace(s.run(t, "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", s.DSN(database), "-c", statements))
}
