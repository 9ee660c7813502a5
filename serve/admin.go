package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/retention"
)

// GCArgs are the arguments of [Admin.Collect]; see registry.CollectOptions.
type GCArgs struct{ DryRun, Now, Untagged bool }

// FsckArgs are the arguments of [Admin.Fsck]; see check.Options.
type FsckArgs struct {
	Quick, Repair, EmptyQuarantine, GiveUpMany, AdoptStore bool
	// From is the source of good copies for a repair. If it is nil, there is none.
	From *FsckSource
	// Rebuild makes the check first record the packs of Gear files that the catalogue
	// does not know.
	Rebuild  bool
	Parallel int
}

// BackupArgs are the arguments of [Admin.Backup].
type BackupArgs struct {
	// Dir is an absolute path.
	Dir string
	// These are as in backup.Options.
	Verify, ReplaceOther, AllowShrink bool
}

// RetainArgs are the arguments of [Admin.Retain]; see retention.Options.
type RetainArgs struct{ DryRun, Now, TrustClock bool }

// Admin administers a data root. The data root is opened by this process or, while a
// server uses it, reached through that server's administration socket. The same code does
// the work in both cases.
type Admin struct {
	cfg   *config.Config
	log   *slog.Logger
	local *root
	http  *http.Client
	reg   oci.Registry
}

// AdminOptions are options of OpenAdmin. The zero value works.
type AdminOptions struct {
	// Create creates the data root if it does not exist. By default that is an error,
	// because there would be nothing to administer.
	Create bool
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// wrap wraps the object store. If it is nil, the store is used as it is.
	wrap func(objstore.Store) objstore.Store
}

// OpenAdmin opens the data root of a configuration. The caller must close it.
func OpenAdmin(ctx context.Context, cfg *config.Config, o *AdminOptions) (*Admin, error) {
	if o == nil {
		o = &AdminOptions{}
	}
	log := o.Logger
	if log == nil {
		log = slog.Default()
	}
	dir, err := diskRoot(cfg)
	if err != nil {
		return nil, err
	}
	if !o.Create {
		if err := checkRoot(dir, cfg.Storage.Catalog.Postgres != ""); err != nil {
			return nil, err
		}
	}
	// If a server is running, it does the writing itself. Then it does not matter who
	// owns the directory.
	if err := checkOwner(dir); err != nil && !rootInUse(dir) {
		return nil, err
	}
	a := &Admin{cfg: cfg, log: log}
	n := newNotifier(cfg, log) // it only queues events; the next server delivers them
	r, err := openRoot(ctx, cfg, rootOptions{log: log, onEvent: n.hook(), wrap: o.wrap})
	if err == nil {
		if err := n.start(r.cat); err != nil {
			return nil, errors.Join(err, r.close(ctx))
		}
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

// diskRoot returns the data directory of a configuration that keeps its data in a
// directory.
func diskRoot(cfg *config.Config) (string, error) {
	if cfg.Storage.Driver() == "inmemory" {
		return "", errors.New("storage.inmemory keeps nothing to look after; configure another storage driver")
	}
	return cfg.Storage.Root(), nil
}

// checkRoot refuses a directory that is not a data root, because opening it would only
// leave files in it. If the catalogue is elsewhere, the directory may be empty.
func checkRoot(dir string, elsewhere bool) error {
	if elsewhere {
		return nil
	}
	_, err := os.Stat(filepath.Join(dir, registry.CatalogFile))
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("the data directory %s is not there; name the right one (storage.filesystem.rootdirectory, storage.directory, --root)", dir)
	}
	if err := checkRestored(dir); err != nil {
		return err
	}
	if err := lostCatalog(dir); err != nil {
		return err
	}
	return fmt.Errorf("%s is not a data directory, it has no %s; name the right one (storage.filesystem.rootdirectory, storage.directory, --root)", dir, registry.CatalogFile)
}

// dialIn connects to a socket in a directory, even if the directory's path is too long
// for a socket address.
func dialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", fdPath(d, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w, which is no server: wait until that command has ended", inUse(dir))
	}
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

// Registry returns the data root as a registry without access control.
func (a *Admin) Registry() oci.Registry { return a.reg }

// Collect collects garbage.
func (a *Admin) Collect(ctx context.Context, args GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "gc", args, progress)
	}
	rep, err := collect(ctx, a.local.reg, args, progress)
	if err == nil && !args.DryRun {
		a.local.collectVolumes(ctx, args.Now, a.log)
	}
	return rep, err
}

func collect(ctx context.Context, r *registry.Registry, args GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	return r.Collect(ctx, registry.CollectOptions{DryRun: args.DryRun, Now: args.Now, Untagged: args.Untagged, Progress: progress})
}

// Fsck checks everything.
func (a *Admin) Fsck(ctx context.Context, args FsckArgs, progress func(check.Report)) (check.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "fsck", args, progress)
	}
	return fsckAll(ctx, a.local, args, progress)
}

// Backup copies everything into a directory.
func (a *Admin) Backup(ctx context.Context, args BackupArgs, progress func(backup.Report)) (backup.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "backup", args, progress)
	}
	return makeBackup(ctx, a.local, args, progress)
}

func makeBackup(ctx context.Context, r *root, args BackupArgs, progress func(backup.Report)) (backup.Report, error) {
	if !filepath.IsAbs(args.Dir) {
		return backup.Report{}, fmt.Errorf("the backup directory %q is not an absolute path", args.Dir)
	}
	inside, err := within(args.Dir, r.dir)
	if err != nil {
		return backup.Report{}, err
	}
	if inside {
		return backup.Report{}, fmt.Errorf("the backup directory %s is in the data directory, and would be lost with it; choose another, on another disk", args.Dir)
	}
	return backup.Make(pastCache(ctx), r.reg, args.Dir,
		backup.Options{Progress: progress, Verify: args.Verify, ReplaceOther: args.ReplaceOther, AllowShrink: args.AllowShrink})
}

// within reports whether path is dir or lies in it. The path need not exist yet.
func within(path, dir string) (bool, error) {
	top, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	// The longest part of the path that exists decides, with its links followed.
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			path = real
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return false, err
		}
		path = filepath.Dir(path)
	}
	for {
		fi, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if os.SameFile(fi, top) {
			return true, nil
		}
		if path == filepath.Dir(path) {
			return false, nil
		}
		path = filepath.Dir(path)
	}
}

// Retain applies the retention rules of the configuration.
func (a *Admin) Retain(ctx context.Context, args RetainArgs) (retention.Report, error) {
	if a.local == nil {
		return askServer[RetainArgs, retention.Report](ctx, a, "retention", args, nil)
	}
	return retain(ctx, a.cfg, a.local.reg, args)
}

func retain(ctx context.Context, cfg *config.Config, r *registry.Registry, args RetainArgs) (retention.Report, error) {
	rules, err := retentionRules(cfg.Storage.Retention)
	if err != nil {
		return retention.Report{}, err
	}
	return retention.Apply(ctx, r, rules, retention.Options{DryRun: args.DryRun, Now: args.Now, TrustClock: args.TrustClock})
}

// line is a line of the answer to an administration request.
type line[R any] struct {
	Progress *R     `json:"progress,omitempty"`
	Report   *R     `json:"report,omitempty"`
	Error    string `json:"error,omitempty"`
}

// askServer asks the server that uses the data root to do the work.
func askServer[A, R any](ctx context.Context, a *Admin, what string, args A, progress func(R)) (rep R, err error) {
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
		return rep, fmt.Errorf("the server that uses the data directory answered %s; is it of another version?", resp.Status)
	}
	for dec := json.NewDecoder(resp.Body); ; {
		var l line[R]
		err := dec.Decode(&l)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil {
			return rep, errors.New("the server ended before the work was done")
		}
		if err != nil {
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
}
