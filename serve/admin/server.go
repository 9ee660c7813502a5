package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/gear/recipes"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/registry"
	"example.org/slipway/registry/activity"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/retention"
	"example.org/slipway/registry/server"
	"example.org/slipway/serve/dataroot"
	"example.org/slipway/serve/gate"
	"example.org/slipway/serve/mirrors"
)

// Server serves administration on a socket in the data root, to root and to the user
// that the server runs as. It offers the tasks and also the whole registry, without
// access control.
type Server struct {
	ln     net.Listener
	srv    *http.Server
	cancel context.CancelFunc // ends the tasks
	once   sync.Once
}

// tasks are what a server does for administration.
type tasks struct {
	root   *dataroot.Root
	cfg    *config.Config
	writes *gate.Writes
	o      ServerOptions
}

// ServerOptions are the parts of a server that its administration needs.
type ServerOptions struct {
	// Guard wraps the handler of requests.
	Guard func(http.Handler) http.Handler
	Log   *slog.Logger
	// Auth decides who may do what.
	Auth *auth.Auth
	// Audit receives events. It may be nil.
	Audit *auth.AuditLog
	// Reload reads the access rules, the users and the rules of replication again.
	Reload func() (Reloaded, error)
}

// NewServer opens the socket of a data root. Its writes go through the gate.
func NewServer(cfg *config.Config, root *dataroot.Root, writes *gate.Writes, o ServerOptions) (*Server, error) {
	dir, err := os.Open(root.Dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := fdPath(dir, Socket)
	// This process holds the lock on the data root, so nobody else uses a socket found
	// here.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old administration socket: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for administration: %w", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // the path goes through a descriptor of this process
	if err := os.Chmod(path, 0o600); err != nil {
		ln.Close()
		return nil, err
	}
	mux := http.NewServeMux()
	t := &tasks{root, cfg, writes, o}
	t.handleTasks(mux)
	t.handleCache(mux)
	t.handleMirrors(mux)
	t.handleTokens(mux)
	t.handleReplication(mux)
	t.handleWebhooks(mux)
	mux.Handle("POST /admin/quotas", task(func(ctx context.Context, _ struct{}, _ func([]quota.Status)) ([]quota.Status, error) {
		return root.Quotas.Status(ctx)
	}))
	mux.Handle("POST /admin/activity", task(func(ctx context.Context, f activity.Filter, _ func(activity.Report)) (activity.Report, error) {
		return readActivity(ctx, cfg, f)
	}))
	mux.Handle("POST /admin/reload", task(func(ctx context.Context, _ struct{}, _ func(Reloaded)) (Reloaded, error) {
		rep, err := o.Reload()
		record(ctx, o.Audit, "reload", "", err)
		return rep, err
	}))
	api := server.New(writes.Registry(root.Registry), &server.Options{Logger: o.Log})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/admin/") {
			mux.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
	ctx, cancel := context.WithCancel(registry.Unnoticed(context.Background()))
	return &Server{ln: ownerOnly{ln}, cancel: cancel, srv: &http.Server{Handler: o.Guard(h), ReadHeaderTimeout: 10 * time.Second, ConnContext: withCaller,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(o.Log.Handler(), slog.LevelError)}}, nil
}

// handleTasks adds the tasks of the registry.
func (s *tasks) handleTasks(mux *http.ServeMux) {
	reg, g := s.root.Registry, s.writes
	mux.Handle("POST /admin/gc", task(whileWritable(g, s.root.Collect)))
	mux.Handle("POST /admin/fsck", task(whileWritable(g, s.root.Fsck)))
	mux.Handle("POST /admin/backup", task(func(ctx context.Context, a dataroot.BackupArgs, p func(backup.Report)) (backup.Report, error) {
		rep, err := s.root.Backup(ctx, a, p)
		return rep, mayWrite(err, a.Dir)
	}))
	mux.Handle("POST /admin/recheck", task(whileWritable(g, func(ctx context.Context, a recheckArgs, _ func(recheckReport)) (recheckReport, error) {
		return recheck(ctx, reg, a)
	})))
	mux.Handle("POST /admin/continue", task(whileWritable(g, func(ctx context.Context, a continueArgs, _ func(struct{})) (struct{}, error) {
		return continues(ctx, reg, a)
	})))
	mux.Handle("POST /admin/tag-times", task(whileWritable(g, func(ctx context.Context, a tagTimesArgs, _ func(struct{})) (struct{}, error) {
		return setTagTimes(ctx, reg, a)
	})))
	mux.Handle("POST /admin/retention", task(whileWritable(g, func(ctx context.Context, a dataroot.RetainArgs, _ func(retention.Report)) (retention.Report, error) {
		return s.root.Retain(ctx, a)
	})))
	mux.Handle("POST /admin/convert", task(whileWritable(g, func(ctx context.Context, a ConvertArgs, p func(ConvertReport)) (ConvertReport, error) {
		if err := gearWritable(s.cfg); err != nil {
			return ConvertReport{}, err
		}
		return convertAll(ctx, s.root.Gear, a, p)
	})))
	mux.Handle("POST /admin/status", task(func(ctx context.Context, _ struct{}, _ func(gearregistry.Status)) (gearregistry.Status, error) {
		return s.root.Gear.Status(ctx)
	}))
	mux.Handle("POST /admin/volumes", task(func(ctx context.Context, a VolumesArgs, _ func(*VolumesReport)) (*VolumesReport, error) {
		return volumesReport(ctx, s.root.Volumes, a)
	}))
	mux.Handle("POST /admin/settle", task(whileWritable(g, func(ctx context.Context, a SettleArgs, _ func(SettleReport)) (SettleReport, error) {
		if err := gearWritable(s.cfg); err != nil {
			return SettleReport{}, err
		}
		return settle(ctx, s.root.Gear, a)
	})))
	mux.Handle("POST /admin/recipes", task(func(ctx context.Context, _ struct{}, _ func(recipes.Status)) (recipes.Status, error) {
		return s.root.Recipes(ctx)
	}))
	mux.Handle("POST /admin/rehydrate", task(whileWritable(g, s.root.Rehydrate)))
	mux.Handle("POST /admin/catalog-move", task(s.moveServed))
}

// handleCache adds the tasks of the cache.
func (s *tasks) handleCache(mux *http.ServeMux) {
	mux.Handle("POST /admin/cache-status", task(func(context.Context, struct{}, func(dataroot.CacheStatus)) (dataroot.CacheStatus, error) {
		return s.root.CacheStatus()
	}))
	mux.Handle("POST /admin/cache-drop", task(func(_ context.Context, a dataroot.CacheDropArgs, _ func(dataroot.CacheDropReport)) (dataroot.CacheDropReport, error) {
		return s.root.DropCached(a)
	}))
	mux.Handle("POST /admin/cache-warm", task(s.root.WarmCache))
}

// handleMirrors adds the tasks of the mirrors.
func (s *tasks) handleMirrors(mux *http.ServeMux) {
	mux.Handle("POST /admin/mirror-status", task(func(ctx context.Context, _ struct{}, _ func(mirrors.Status)) (mirrors.Status, error) {
		m, err := mirrorsOf(s.root)
		if err != nil {
			return mirrors.Status{}, err
		}
		return m.StatusAndUsage(ctx)
	}))
	mux.Handle("POST /admin/mirror-list", task(func(ctx context.Context, a mirrors.ListArgs, _ func(mirrors.ListReport)) (mirrors.ListReport, error) {
		return s.root.MirrorStore().List(ctx, a)
	}))
	mux.Handle("POST /admin/mirror-load", task(func(ctx context.Context, a mirrors.LoadArgs, p func(mirrors.LoadReport)) (mirrors.LoadReport, error) {
		m, err := mirrorsOf(s.root)
		if err != nil {
			return mirrors.LoadReport{}, err
		}
		return m.LoadImages(ctx, a, p)
	}))
	mux.Handle("POST /admin/mirror-prune", task(whileWritable(s.writes, func(ctx context.Context, a mirrors.PruneArgs, _ func(mirrors.PruneReport)) (mirrors.PruneReport, error) {
		m, err := mirrorsOf(s.root)
		if err != nil {
			return mirrors.PruneReport{}, err
		}
		return m.PruneImages(ctx, a)
	})))
	mux.HandleFunc("POST /admin/mirror-events", func(w http.ResponseWriter, r *http.Request) {
		m, err := mirrorsOf(s.root)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		m.ServeEvents(w, r)
	})
	mux.Handle("POST /admin/mirror-export", task(func(ctx context.Context, a mirrors.ExportArgs, p func(airgap.Progress)) (airgap.Progress, error) {
		return exportMirrors(ctx, s.root, a, p)
	}))
	mux.Handle("POST /admin/mirror-import", task(whileWritable(s.writes, func(ctx context.Context, a mirrors.ImportArgs, p func(airgap.Progress)) (airgap.Progress, error) {
		m, err := mirrorsOf(s.root)
		if err != nil {
			return airgap.Progress{}, err
		}
		return m.Import(ctx, a, p)
	})))
}

// Serve serves until Stop.
func (a *Server) Serve() error { return a.srv.Serve(a.ln) }

// Stop ends the tasks under way, which can all be interrupted at any point. It does not
// wait for them; the gate does.
func (a *Server) Stop() {
	a.once.Do(func() {
		a.cancel()
		a.srv.Close()
		a.ln.Close()
	})
}

// ownerOnly accepts connections of this process's user and of root. The mode of the
// socket has the same effect, but only from the moment it is set.
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
	cred := peerOf(c)
	return cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
}

// clientPatience is how long a client may leave the answer unread. A stopped client must
// not hold up the task, because the task may hold up others.
const clientPatience = 10 * time.Second

// maxArgs is the size in bytes of the largest request, which is a list of images to
// fetch.
const maxArgs = 32 << 20

// mayWrite adds advice for the user to an error about a directory, if the error says that
// this server may not write there. The server writes the directory, not the user who made
// the request.
func mayWrite(err error, dir string) error {
	var at *fs.PathError
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) || !errors.As(err, &at) ||
		!strings.HasPrefix(at.Path, dir) && !strings.HasPrefix(dir, at.Path) {
		return err
	}
	name := strconv.Itoa(os.Geteuid())
	if u, uerr := user.Current(); uerr == nil {
		name = u.Username
	}
	return fmt.Errorf("%w; the running server writes it, so %[2]s must be there and belong to its user, %[3]s, and the server's unit must let it: systemctl edit slipway, [Service] ReadWritePaths=%[2]s, systemctl restart slipway", err, dir, name)
}

// task serves one kind of administration work as lines of JSON.
func task[A, R any](do func(context.Context, A, func(R)) (R, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var args A
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxArgs))
		dec.DisallowUnknownFields() // an unknown limit of another version must not be ignored
		if err := dec.Decode(&args); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		enc := json.NewEncoder(w)
		rc := http.NewResponseController(w)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		var last time.Time
		send := func(l line[R]) {
			_ = rc.SetWriteDeadline(time.Now().Add(clientPatience)) // a socket has deadlines
			if err := errors.Join(enc.Encode(l), rc.Flush()); err != nil {
				cancel() // nobody is left to report to
			}
		}
		var mu sync.Mutex
		rep, err := do(ctx, args, func(p R) {
			mu.Lock()
			defer mu.Unlock()
			const often = 100 * time.Millisecond
			if time.Since(last) >= often {
				last = time.Now()
				send(line[R]{Progress: &p})
			}
		})
		l := line[R]{Report: &rep, Done: true}
		if err != nil {
			l.Error = err.Error()
		}
		send(l)
	})
}

// whileWritable runs f unless writes are stopped, and keeps them from being stopped
// meanwhile.
func whileWritable[A, R any](g *gate.Writes, f func(context.Context, A, func(R)) (R, error)) func(context.Context, A, func(R)) (R, error) {
	return func(ctx context.Context, args A, progress func(R)) (R, error) {
		leave, err := g.Enter()
		if err != nil {
			var none R
			return none, err
		}
		defer leave()
		return f(ctx, args, progress)
	}
}
