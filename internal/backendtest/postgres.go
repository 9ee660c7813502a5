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

// PostgresServer is a PostgreSQL server for tests.
type PostgresServer struct {
	*Daemon
	// Addr is the address on which it listens, host:port.
	Addr string

	bin, data string
	cred      *syscall.SysProcAttr
	last      atomic.Int64
}

// postgresDir is where Debian installs the programs, by version.
const postgresDir = "/usr/lib/postgresql/*/bin"

// postgresBin returns the directory of initdb and postgres.
func postgresBin(t testing.TB) string {
	t.Helper()
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err != nil { // the other programs lie beside the real one
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

// Postgres starts a server that ends with the test. The server does not sync its files,
// as only a power cut would show that. Settings such as "fsync=on" change it. As root,
// the test runs it as the user postgres.
func Postgres(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	s := newPostgres(t)
	s.run(t, "initdb", "-D", s.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
	s.launch(t, settings)
	return s
}

// newPostgres returns a server with an empty directory.
func newPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	s := &PostgresServer{bin: postgresBin(t), cred: &syscall.SysProcAttr{}}
	dir := shortDir(t)
	s.data = filepath.Join(dir, "data")
	if os.Getuid() == 0 {
		s.becomePostgres(t, dir)
	}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	return s
}

// launch starts a server whose data directory is ready.
func (s *PostgresServer) launch(t testing.TB, settings []string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(s.Addr) // it was joined above
	args := []string{"-D", s.data, "-p", port, "-h", "127.0.0.1", "-k", "",
		"-c", "shared_buffers=32MB", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	s.Daemon = start(t, filepath.Dir(s.data), func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(s.bin, "postgres"), args...)
		attr := *s.cred
		cmd.SysProcAttr, cmd.Dir, cmd.Env = &attr, filepath.Dir(s.data), os.Environ()
		return cmd
	}, s.Ready)
	t.Cleanup(s.Kill)
}

// Standby starts a copy of the server that follows it. From then on each commit of the
// server waits until the copy has it. So what was acknowledged survives if the server is
// lost and the copy takes its place; see Promote. The copy ends with the test.
func (s *PostgresServer) Standby(t testing.TB, settings ...string) *PostgresServer {
	t.Helper()
	c := newPostgres(t)
	c.copyOf(t, s)
	c.launch(t, settings)
	c.awaited(t, s)
	return c
}

// Follow makes the server a standby of primary, as Standby does. It deletes all data of
// the server.
func (s *PostgresServer) Follow(t testing.TB, primary *PostgresServer) {
	t.Helper()
	s.Kill()
	if err := os.RemoveAll(s.data); err != nil {
		t.Fatal(err)
	}
	s.copyOf(t, primary)
	s.Start(s.Ready)
	s.awaited(t, primary)
}

func (s *PostgresServer) copyOf(t testing.TB, primary *PostgresServer) {
	t.Helper()
	s.run(t, "pg_basebackup", "-d", primary.DSN("postgres"), "-D", s.data, "-R", "-X", "stream", "-c", "fast", "--no-sync")
}

// awaited makes commits of primary wait for its standby.
func (s *PostgresServer) awaited(t testing.TB, primary *PostgresServer) {
	t.Helper()
	primary.SQL(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'")
	primary.SQL(t, "postgres", "SELECT pg_reload_conf()")
	for begin := time.Now(); primary.SQL(t, "postgres", "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1"; time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > startTimeout {
			t.Fatalf("%s does not follow %s", s.Addr, primary.Addr)
		}
	}
}

// Promote makes a standby a server that accepts changes and waits for no standby itself.
// The server it followed must be gone, or must have no clients left.
func (s *PostgresServer) Promote(t testing.TB) {
	t.Helper()
	if s.SQL(t, "postgres", "SELECT pg_promote()") != "t" {
		t.Fatalf("%s was not promoted", s.Addr)
	}
	s.SQL(t, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	s.SQL(t, "postgres", "SELECT pg_reload_conf()")
}

// Kill ends the server and its processes with SIGKILL, and returns when they are gone.
func (s *PostgresServer) Kill() {
	s.Signal(syscall.SIGSTOP) // otherwise it would start more children than are found
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

// killOrphan ends a process of a server that is gone, and waits until it is a zombie.
// A lost command line is not enough: an ending process loses it before it releases its
// shared memory, and a server does not start before that.
func killOrphan(pid int) {
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
		switch state, _ := statOf(pid); {
		case state == "" || state == "Z" || state == "X":
			return
		case isPostgres(pid):
			_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has ended in the meantime
		case hasCommand(pid):
			return // another process has its number now
		}
	}
}

// childrenOf returns the processes that a process has started.
func childrenOf(pid int) []int {
	found, _ := filepath.Glob("/proc/[0-9]*") // the pattern is valid
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

// statOf returns the state of a process and its parent, or "" and 0 if it has ended.
func statOf(pid int) (state string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// Both follow the name, which is in parentheses and may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1]) // proc(5) says that it is a number
	return fields[0], parent
}

// isPostgres reports whether a process belongs to a running server, and is not another
// program whose process got the same number. A process that was just forked looks like
// its parent.
func isPostgres(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(b), "postgres")
}

// hasCommand reports whether a process runs a program. A process that is ending runs
// none.
func hasCommand(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(b) > 0
}

// becomePostgres makes the server run as the user postgres, because it refuses to run as
// root.
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

// run runs one of PostgreSQL's programs until it ends.
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

// Ready returns nil if the server answers. It is the argument for Start.
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

// DSN returns the connection string of a database.
func (s *PostgresServer) DSN(database string) string { return postgresDSN(s.Addr, database) }

// DSNThrough is like DSN, for another address, such as a proxy's, or for several
// addresses, separated by commas.
func (s *PostgresServer) DSNThrough(addr, database string) string { return postgresDSN(addr, database) }

func postgresDSN(addr, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// CreateDatabase makes an empty database with a unique name and returns the name. options
// are added to CREATE DATABASE. The database ends with the server.
func (s *PostgresServer) CreateDatabase(t testing.TB, options ...string) string {
	t.Helper()
	name := "test" + strconv.FormatInt(s.last.Add(1), 10)
	s.SQL(t, "postgres", "CREATE DATABASE "+name+" TEMPLATE template0 "+strings.Join(options, " "))
	return name
}

// SQL runs statements in a database with psql and returns their output without headings.
func (s *PostgresServer) SQL(t testing.TB, database, statements string) string {
	t.Helper()
	return strings.TrimSpace(s.run(t, "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", s.DSN(database), "-c", statements))
}
