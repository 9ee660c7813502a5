// Package volumeworker is the process that opens the volumes of a node in their storage
// and serves them as files. It is also the client by which the agent's worker says which
// volumes to serve.
package volumeworker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
	"example.org/slipway/volume/volfs"
)

// The agent's worker calls the volume worker over a socket, with JSON over HTTP. One
// process mounts the volumes and the other serves them; neither does both.

const (
	// maxRequest and maxAnswer bound how many bytes of a call are read.
	maxRequest = 1 << 20
	maxAnswer  = 64 << 20
)

// request holds the arguments of a call. Which fields are set depends on the call.
type request struct {
	Name       string            `json:"name,omitempty"`
	Place      volref.Place      `json:"place,omitzero"`
	Credential volref.Credential `json:"credential,omitzero"`
	ID         string            `json:"id,omitempty"`
	Parent     string            `json:"parent,omitempty"`
}

// answer is the result of a call. For an error, Code says which error of package
// block it is.
type answer struct {
	Exists bool           `json:"exists,omitempty"`
	List   []volfs.Status `json:"list,omitempty"`
	Error  string         `json:"error,omitempty"`
	Code   string         `json:"code,omitempty"`
}

// storageErrors maps codes to the errors that callers distinguish.
var storageErrors = map[string]error{
	"not_found": block.ErrNotFound, "exists": block.ErrExists, "not_committed": block.ErrNotCommitted, "committed": block.ErrCommitted,
	"in_use": block.ErrInUse, "full": block.ErrFull, "away": block.ErrAway, "denied": block.ErrDenied, "not_connected": errNotConnected,
}

func codeOf(err error) string {
	for code, e := range storageErrors {
		if errors.Is(err, e) {
			return code
		}
	}
	return ""
}

// remoteError is an error of the volume worker.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// handler serves the calls of a Storage.
func handler(s *volfs.Server, all *stores) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /map", handle(func(ctx context.Context, m block.Mapping) (a answer, err error) {
		return a, s.Add(ctx, m)
	}))
	mux.HandleFunc("POST /unmap", handle(func(ctx context.Context, r request) (a answer, err error) {
		return a, s.Remove(ctx, r.Name)
	}))
	mux.HandleFunc("GET /list", handle(func(context.Context, struct{}) (a answer, err error) {
		return answer{List: s.List()}, nil
	}))
	with := func(do func(ctx context.Context, s block.Store, r *request, a *answer) error) http.HandlerFunc {
		return handle(func(ctx context.Context, r request) (a answer, err error) {
			store, give, err := all.use(ctx, r.Place, r.Credential)
			if err != nil {
				return a, err
			}
			defer give()
			return a, do(ctx, store, &r, &a)
		})
	}
	mux.HandleFunc("POST /clone", with(clone))
	mux.HandleFunc("POST /remove", with(func(ctx context.Context, s block.Store, r *request, _ *answer) error {
		return s.Remove(ctx, r.ID)
	}))
	mux.HandleFunc("POST /commit", with(func(ctx context.Context, s block.Store, r *request, _ *answer) error {
		return s.Commit(ctx, r.ID)
	}))
	mux.HandleFunc("POST /exists", with(func(ctx context.Context, s block.Store, r *request, a *answer) error {
		info, err := s.Stat(ctx, r.ID)
		if errors.Is(err, block.ErrNotFound) {
			return nil
		}
		a.Exists = info.Committed
		return err
	}))
	return mux
}

func clone(ctx context.Context, s block.Store, r *request, _ *answer) error {
	info, err := s.Stat(ctx, r.Parent)
	if err != nil {
		return err
	}
	v, err := s.Create(ctx, r.ID, r.Parent, info.Size)
	if err != nil {
		return err
	}
	return v.Close()
}

// handle makes the handler of a call.
func handle[In any](do func(context.Context, In) (answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		out, err := do(r.Context(), in)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			out = answer{Error: err.Error(), Code: codeOf(err)}
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
		_ = json.NewEncoder(w).Encode(out) // the caller is gone
	}
}

// Storage is the storage of a node's volumes, which another process holds open.
type Storage struct {
	dir  string // where it serves the volumes
	http *http.Client
}

var (
	_ node.Storage = (*Storage)(nil)
	_ node.Refuser = (*Storage)(nil)
)

// NewStorage returns the storage that the volume worker at a socket holds open. dir is where it
// serves the volumes.
func NewStorage(socket, dir string) *Storage {
	// Each call has its own connection, because a kept connection may lead to a worker
	// that was killed. The socket stays, and a call to the next worker waits in it.
	return &Storage{dir, &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}}
}

// Map implements node.Storage.
func (s *Storage) Map(ctx context.Context, m block.Mapping) (string, error) {
	_, err := s.call(ctx, http.MethodPost, "/map", m)
	return filepath.Join(s.dir, m.Name), err
}

// Unmap implements node.Storage.
func (s *Storage) Unmap(ctx context.Context, name string) error {
	_, err := s.call(ctx, http.MethodPost, "/unmap", request{Name: name})
	return err
}

// Mapped implements node.Storage.
func (s *Storage) Mapped(ctx context.Context) ([]string, error) {
	list, err := s.List(ctx)
	var names []string
	for i := range list {
		names = append(names, list[i].Mapping.Name)
	}
	return names, err
}

// Refused implements node.Refuser.
func (s *Storage) Refused(ctx context.Context) ([]string, error) {
	list, err := s.List(ctx)
	var names []string
	for i := range list {
		if list[i].Denied {
			names = append(names, list[i].Mapping.Name)
		}
	}
	return names, err
}

// List returns the status of everything that is mapped.
func (s *Storage) List(ctx context.Context) ([]volfs.Status, error) {
	a, err := s.call(ctx, http.MethodGet, "/list", nil)
	return a.List, err
}

// Clone implements node.Storage.
func (s *Storage) Clone(ctx context.Context, p volref.Place, c volref.Credential, id, parent string) error {
	_, err := s.call(ctx, http.MethodPost, "/clone", request{Place: p, Credential: c, ID: id, Parent: parent})
	return err
}

// Remove implements node.Storage.
func (s *Storage) Remove(ctx context.Context, p volref.Place, c volref.Credential, id string) error {
	_, err := s.call(ctx, http.MethodPost, "/remove", request{Place: p, Credential: c, ID: id})
	return err
}

// Commit implements node.Storage.
func (s *Storage) Commit(ctx context.Context, p volref.Place, c volref.Credential, id string) error {
	_, err := s.call(ctx, http.MethodPost, "/commit", request{Place: p, Credential: c, ID: id})
	return err
}

// Exists implements node.Storage.
func (s *Storage) Exists(ctx context.Context, p volref.Place, c volref.Credential, id string) (bool, error) {
	a, err := s.call(ctx, http.MethodPost, "/exists", request{Place: p, Credential: c, ID: id})
	return a.Exists, err
}

// Close ends the connections to the volume worker.
func (s *Storage) Close() { s.http.CloseIdleConnections() }

// storageTries is how many times a call is tried if the volume worker dies during it.
const storageTries = 3

// call calls the volume worker, and calls the next one if it dies meanwhile. It does not
// repeat the making of a clone, because the second try would find the clone of the first
// in its way.
func (s *Storage) call(ctx context.Context, method, path string, in any) (a answer, err error) {
	b, err := json.Marshal(in)
	if err != nil {
		return a, err
	}
	for try := 1; ; try++ {
		var died bool
		a, died, err = s.once(ctx, method, path, b)
		if !died || try == storageTries || path == "/clone" || ctx.Err() != nil {
			return a, err
		}
	}
}

// once is one try of a call. It reports whether the worker ended before it answered.
func (s *Storage) once(ctx context.Context, method, path string, in []byte) (a answer, died bool, err error) {
	var body io.Reader = http.NoBody
	if method == http.MethodPost {
		body = bytes.NewReader(in)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://volumes"+path, body)
	if err != nil {
		return a, false, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return a, true, fmt.Errorf("ask the volume worker: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return a, true, fmt.Errorf("answer of the volume worker: %w", err)
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, false, fmt.Errorf("answer of the volume worker: %s: %.200q", resp.Status, b)
	}
	if a.Error != "" {
		return a, false, &remoteError{a.Error, storageErrors[a.Code]}
	}
	return a, false, nil
}
