// Package admin administers data roots: in this process or, while a server uses one,
// through that server's administration socket. The package also has the server of that
// socket. The same code does the work in both cases.
package admin

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
	"example.org/slipway/serve/dataroot"
)

// Socket is the name of the administration socket in a data root.
const Socket = "admin.sock"

// Admin administers a data root. The data root is opened by this process or, while a
// server uses it, reached through that server's administration socket.
type Admin struct {
	cfg   *config.Config
	local *dataroot.Root
	http  *http.Client
	reg   oci.Registry
}

// Options are options of Open. The zero value works.
type Options struct {
	// Create creates the data root if it does not exist. By default that is an error,
	// because there would be nothing to administer.
	Create bool
	// Logger defaults to slog.Default.
	Logger *slog.Logger
	// wrap wraps the object store. If it is nil, the store is used as it is.
	wrap func(objstore.Store) objstore.Store
}

// Open opens the data root of a configuration. The caller must close it.
func Open(ctx context.Context, cfg *config.Config, o *Options) (*Admin, error) {
	if o == nil {
		o = &Options{}
	}
	dir, err := dataroot.Find(cfg, o.Create)
	if err != nil {
		return nil, err
	}
	a := &Admin{cfg: cfg}
	r, err := dataroot.Open(ctx, cfg, dataroot.Options{Logger: o.Logger, Wrap: o.wrap})
	if err == nil {
		a.local, a.reg = r, r.Registry
		return a, nil
	}
	if !errors.Is(err, dataroot.ErrInUse) {
		return nil, err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialIn(ctx, dir, Socket)
	}}
	a.http = &http.Client{Transport: transport}
	c, err := client.New("http://admin.localhost", &client.Options{Transport: transport})
	if err != nil {
		return nil, err
	}
	a.reg = c
	return a, nil
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
		return nil, fmt.Errorf("%w: %s, which is no server: wait until that command has ended", dataroot.ErrInUse, dir)
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
		return a.local.Close(ctx)
	}
	a.http.CloseIdleConnections()
	return nil
}

// Registry returns the data root as a registry without access control.
func (a *Admin) Registry() oci.Registry { return a.reg }

// Collect collects garbage.
func (a *Admin) Collect(ctx context.Context, args dataroot.GCArgs, progress func(registry.CollectReport)) (registry.CollectReport, error) {
	if a.local == nil {
		return askServer(ctx, a, "gc", args, progress)
	}
	return a.local.Collect(ctx, args, progress)
}

// Fsck checks everything.
func (a *Admin) Fsck(ctx context.Context, args dataroot.FsckArgs, progress func(check.Report)) (check.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "fsck", args, progress)
	}
	return a.local.Fsck(ctx, args, progress)
}

// Backup copies everything into a directory.
func (a *Admin) Backup(ctx context.Context, args dataroot.BackupArgs, progress func(backup.Report)) (backup.Report, error) {
	if a.local == nil {
		return askServer(ctx, a, "backup", args, progress)
	}
	return a.local.Backup(ctx, args, progress)
}

// Retain applies the retention rules of the configuration.
func (a *Admin) Retain(ctx context.Context, args dataroot.RetainArgs) (retention.Report, error) {
	if a.local == nil {
		return askServer[dataroot.RetainArgs, retention.Report](ctx, a, "retention", args, nil)
	}
	return a.local.Retain(ctx, args)
}

// line is a line of the answer to an administration request.
type line[R any] struct {
	Progress *R     `json:"progress,omitempty"`
	Report   *R     `json:"report,omitempty"`
	Error    string `json:"error,omitempty"`
	// Done says that the line is the last one. A report that is an empty list is null.
	Done bool `json:"done,omitempty"`
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
		case l.Report != nil || l.Done:
			if l.Report != nil {
				rep = *l.Report
			}
			if l.Error != "" {
				return rep, errors.New(l.Error)
			}
			return rep, nil
		}
	}
}
