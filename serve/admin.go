package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/client"
	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/server"
)

// GCArgs of [Admin.Collect]; see registry.CollectOptions.
type GCArgs struct{ DryRun, Now, Untagged bool }

// FsckArgs of [Admin.Fsck]; see registry.FsckOptions.
type FsckArgs struct {
	Quick, Repair bool
	Parallel      int
}

// BackupArgs of [Admin.Backup].
type BackupArgs struct {
	// Dir is an absolute path.
	Dir string
}

// RetainArgs of [Admin.Retain]; see registry.RetainOptions.
type RetainArgs struct{ DryRun, Now bool }

// Admin is a data root to look after: opened by this process, or, while a server
// uses it, reached through that server's administration socket. Either way the
// same code does the work.
type Admin struct {
	cfg   *config.Config
	local *root
	http  *http.Client
	reg   oci.Registry
}

// OpenAdmin opens the data root of a configuration.
func OpenAdmin(ctx context.Context, cfg *config.Config, log *slog.Logger) (*Admin, error) {
	dir := cfg.Storage.FileSystem.RootDirectory
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	a := &Admin{cfg: cfg}
	r, err := openRoot(ctx, cfg, log, nil)
	if err == nil {
		a.local, a.reg = r, r.reg
		return a, nil
	}
	if !errors.Is(err, ErrInUse) {
		return nil, err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialIn(ctx, dir, adminSocket)
	}}
	a.http = &http.Client{Transport: transport}
	c, err := client.New("http://admin.localhost", &client.Options{Transport: transport})
	if err != nil {
		return nil, err
	}
	a.reg = c
	return a, nil
}

// dialIn connects to a socket in a directory whose path may be too long for a
// socket address.
func dialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", fdPath(d, name))
	if err != nil {
		return nil, fmt.Errorf("reach the server that uses %s: %w", dir, err)
	}
	return c, nil
}

func fdPath(d *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name)
}

// Close releases the data root.
func (a *Admin) Close(ctx context.Context) error {
	if a.local != nil {
		return a.local.close(ctx)
	}
	a.http.CloseIdleConnections()
	return nil
}

// Registry is the data root as a registry, without access control.
func (a *Admin) Registry() oci.Registry { return a.reg }

// Collect collects garbage.
func (a *Admin) Collect(ctx context.Context, args GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	if a.local == nil {
		return remote(ctx, a, "gc", args, progress)
	}
	return collect(ctx, a.local.reg, args, progress)
}

func collect(ctx context.Context, r *registry.Registry, args GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	return r.Collect(ctx, registry.CollectOptions{DryRun: args.DryRun, Now: args.Now, Untagged: args.Untagged, Progress: progress})
}

// Fsck checks everything.
func (a *Admin) Fsck(ctx context.Context, args FsckArgs, progress func(registry.FsckReport)) (registry.FsckReport, error) {
	if a.local == nil {
		return remote(ctx, a, "fsck", args, progress)
	}
	return fsck(ctx, a.local.reg, args, progress)
}

func fsck(ctx context.Context, r *registry.Registry, args FsckArgs, progress func(registry.FsckReport)) (registry.FsckReport, error) {
	return r.Fsck(ctx, registry.FsckOptions{Quick: args.Quick, Repair: args.Repair, Parallel: args.Parallel, Progress: progress})
}

// Backup copies everything into a directory.
func (a *Admin) Backup(ctx context.Context, args BackupArgs, progress func(registry.BackupReport)) (registry.BackupReport, error) {
	if a.local == nil {
		return remote(ctx, a, "backup", args, progress)
	}
	return backup(ctx, a.local.reg, args, progress)
}

func backup(ctx context.Context, r *registry.Registry, args BackupArgs, progress func(registry.BackupReport)) (registry.BackupReport, error) {
	if !filepath.IsAbs(args.Dir) {
		return registry.BackupReport{}, fmt.Errorf("the backup directory %q is not an absolute path", args.Dir)
	}
	return r.Backup(ctx, args.Dir, registry.BackupOptions{Progress: progress})
}

// Retain applies the retention rules of the configuration.
func (a *Admin) Retain(ctx context.Context, args RetainArgs) (registry.RetentionReport, error) {
	if a.local == nil {
		return remote[RetainArgs, registry.RetentionReport](ctx, a, "retention", args, nil)
	}
	return retain(ctx, a.cfg, a.local.reg, args)
}

func retain(ctx context.Context, cfg *config.Config, r *registry.Registry, args RetainArgs) (registry.RetentionReport, error) {
	rules, err := retentionRules(cfg.Storage.Retention)
	if err != nil {
		return registry.RetentionReport{}, err
	}
	return r.Retain(ctx, rules, registry.RetainOptions{DryRun: args.DryRun, Now: args.Now})
}

// line is one line of the answer to an administration request.
type line[R any] struct {
	Progress *R     `json:"progress,omitempty"`
	Report   *R     `json:"report,omitempty"`
	Error    string `json:"error,omitempty"`
}

// remote has the server that uses the data root do it.
func remote[A, R any](ctx context.Context, a *Admin, what string, args A, progress func(R)) (rep R, err error) {
	body, err := json.Marshal(args)
	if err != nil {
		return rep, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://admin.localhost/admin/"+what, bytes.NewReader(body))
	if err != nil {
		return rep, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return rep, fmt.Errorf("ask the server: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return rep, fmt.Errorf("the server answered %s; is it of another version?", resp.Status)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 64<<20) // a report may list many problems
	for sc.Scan() {
		var l line[R]
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return rep, fmt.Errorf("read the server's answer: %w", err)
		}
		switch {
		case l.Progress != nil && progress != nil:
			progress(*l.Progress)
		case l.Report != nil:
			rep = *l.Report
			if l.Error != "" {
				return rep, errors.New(l.Error)
			}
			return rep, nil
		}
	}
	if err := sc.Err(); err != nil {
		return rep, fmt.Errorf("read the server's answer: %w", err)
	}
	return rep, errors.New("the server ended before it was done")
}

// adminServer serves administration on a socket in the data root, to the user
// the server runs as and to root. Beside the tasks it has the whole registry,
// without access control.
type adminServer struct {
	ln   net.Listener
	srv  *http.Server
	once sync.Once
}

func newAdminServer(s *Server) (*adminServer, error) {
	dir, err := os.Open(s.root.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := fdPath(dir, adminSocket)
	// The lock on the data root says that nobody else uses a socket found here.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old administration socket: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // the path names this process's descriptor
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	mux := http.NewServeMux()
	reg := s.root.reg
	mux.Handle("POST /admin/gc", task(func(ctx context.Context, a GCArgs, p func(registry.CollectReport)) (registry.CollectReport, error) {
		return collect(ctx, reg, a, p)
	}))
	mux.Handle("POST /admin/fsck", task(func(ctx context.Context, a FsckArgs, p func(registry.FsckReport)) (registry.FsckReport, error) {
		return fsck(ctx, reg, a, p)
	}))
	mux.Handle("POST /admin/backup", task(func(ctx context.Context, a BackupArgs, p func(registry.BackupReport)) (registry.BackupReport, error) {
		return backup(ctx, reg, a, p)
	}))
	mux.Handle("POST /admin/retention", task(func(ctx context.Context, a RetainArgs, _ func(registry.RetentionReport)) (registry.RetentionReport, error) {
		return retain(ctx, s.cfg, reg, a)
	}))
	api := server.New(reg, &server.Options{Logger: s.log})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.Path) >= 7 && r.URL.Path[:7] == "/admin/" {
			mux.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
	return &adminServer{ln: ownerOnly{ln}, srv: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}}, nil
}

func (a *adminServer) serve() error { return a.srv.Serve(a.ln) }

// stop ends the tasks under way: all of them can be cut off at any point.
func (a *adminServer) stop() { a.once.Do(func() { a.srv.Close(); a.ln.Close() }) }

// ownerOnly accepts connections of this process's user and of root; the mode of
// the socket says the same, but only from the moment it is set.
type ownerOnly struct{ net.Listener }

// Accept implements net.Listener.
func (l ownerOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if allowedPeer(c) {
			return c, nil
		}
		c.Close()
	}
}

func allowedPeer(c net.Conn) bool {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && credErr == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// task serves one kind of administration work as lines of JSON.
func task[A, R any](do func(context.Context, A, func(R)) (R, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args A
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&args); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		enc := json.NewEncoder(w)
		flush := http.NewResponseController(w).Flush
		var last time.Time
		send := func(l line[R]) {
			// The client's going ends the context, which ends the task.
			_ = enc.Encode(l)
			_ = flush()
		}
		var mu sync.Mutex
		rep, err := do(r.Context(), args, func(p R) {
			mu.Lock()
			defer mu.Unlock()
			const often = 100 * time.Millisecond
			if time.Since(last) >= often {
				last = time.Now()
				send(line[R]{Progress: &p})
			}
		})
		l := line[R]{Report: &rep}
		if err != nil {
			l.Error = err.Error()
		}
		send(l)
	})
}
