package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"strings"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/file"
	"example.org/slipway/volume/node"
	"example.org/slipway/volume/rbd"
	"example.org/slipway/volume/volfs"
)

// service is the other process. It has the store open and serves its volumes as files. Its methods
// are those of node.Storage, for net/rpc.
type service struct {
	srv   *volfs.Server
	store block.Store
	mnt   string
}

// openStore opens the volumes in a directory, or those of rbd.Options in JSON.
func openStore(where string) (block.Store, error) {
	if !strings.HasPrefix(where, "{") {
		return file.Open(where, nil)
	}
	var o rbd.Options
	if err := json.Unmarshal([]byte(where), &o); err != nil {
		return nil, err
	}
	return rbd.Open(context.Background(), o)
}

// serveStorage plays the role "storage". Its arguments are the mount, the store, the state and the
// socket. Descriptor 3 is the connection.
func serveStorage() error {
	mnt, dir, state, sock := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	store, err := openStore(dir)
	if err != nil {
		return err
	}
	opener := func(ctx context.Context, m block.Mapping) (block.Volume, error) {
		if key, err := os.ReadFile(dir + ".denied"); err == nil && m.Credential.Key != string(key) {
			return nil, block.ErrDenied
		}
		if m.Writable {
			return store.OpenWriter(ctx, m.ID)
		}
		return store.Open(ctx, m.ID)
	}
	srv, err := volfs.New(os.NewFile(3, "fuse"), opener, &volfs.Options{State: state, Bound: 10 * time.Second})
	if err != nil {
		return err
	}
	r := rpc.NewServer()
	if err := r.RegisterName("S", &service{srv, store, mnt}); err != nil {
		return err
	}
	os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	go r.Accept(l)
	return srv.Serve(context.Background())
}

// Args and Reply are used by all methods.
type (
	Args struct {
		M          block.Mapping
		P          volref.Place
		C          volref.Credential
		ID, Parent string
	}
	Reply struct {
		File  string
		Names []string
		There bool
	}
)

const callTime = 5 * time.Second

func (s *service) Map(a *Args, r *Reply) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	r.File = s.mnt + "/" + a.M.Name
	return s.srv.Add(ctx, a.M)
}

func (s *service) Unmap(a *Args, r *Reply) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return s.srv.Remove(ctx, a.ID)
}

func (s *service) Mapped(a *Args, r *Reply) error {
	for _, st := range s.srv.List() {
		r.Names = append(r.Names, st.Mapping.Name)
	}
	return nil
}

func (s *service) Refused(a *Args, r *Reply) error {
	for _, st := range s.srv.List() {
		if st.Denied {
			r.Names = append(r.Names, st.Mapping.Name)
		}
	}
	return nil
}

func (s *service) Clone(a *Args, r *Reply) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	info, err := s.store.Stat(ctx, a.Parent)
	if err != nil {
		return err
	}
	v, err := s.store.Create(ctx, a.ID, a.Parent, info.Size)
	if err != nil {
		return err
	}
	return v.Close()
}

func (s *service) Remove(a *Args, r *Reply) error {
	return s.store.Remove(context.Background(), a.ID)
}

func (s *service) Commit(a *Args, r *Reply) error {
	return s.store.Commit(context.Background(), a.ID)
}

func (s *service) Exists(a *Args, r *Reply) error {
	info, err := s.store.Stat(context.Background(), a.ID)
	if errors.Is(err, block.ErrNotFound) {
		return nil
	}
	r.There = info.Committed
	return err
}

// remote is node.Storage over the socket.
type remote struct{ sock string }

var (
	_ node.Storage = (*remote)(nil)
	_ node.Refuser = (*remote)(nil)
)

func (s *remote) call(ctx context.Context, method string, a *Args) (*Reply, error) {
	c, err := rpc.Dial("unix", s.sock)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", block.ErrAway, err)
	}
	defer c.Close()
	r := &Reply{}
	done := c.Go("S."+method, a, r, make(chan *rpc.Call, 1)).Done
	select {
	case call := <-done:
		return r, typed(call.Error)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// typed turns an error that arrived as text back into its value.
func typed(err error) error {
	if err == nil {
		return nil
	}
	for _, is := range []error{block.ErrNotFound, block.ErrExists, block.ErrNotCommitted, block.ErrCommitted, block.ErrInUse, block.ErrFull, block.ErrAway, block.ErrDenied} {
		if strings.Contains(err.Error(), is.Error()) {
			return fmt.Errorf("%w (%s)", is, err)
		}
	}
	return err
}

func (s *remote) Map(ctx context.Context, m block.Mapping) (string, error) {
	r, err := s.call(ctx, "Map", &Args{M: m})
	if err != nil {
		return "", err
	}
	return r.File, nil
}

func (s *remote) Unmap(ctx context.Context, name string) error {
	_, err := s.call(ctx, "Unmap", &Args{ID: name})
	return err
}

func (s *remote) Mapped(ctx context.Context) ([]string, error) {
	r, err := s.call(ctx, "Mapped", &Args{})
	if err != nil {
		return nil, err
	}
	return r.Names, nil
}

func (s *remote) Refused(ctx context.Context) ([]string, error) {
	r, err := s.call(ctx, "Refused", &Args{})
	if err != nil {
		return nil, err
	}
	return r.Names, nil
}

func (s *remote) Clone(ctx context.Context, p volref.Place, c volref.Credential, id, parent string) error {
	_, err := s.call(ctx, "Clone", &Args{P: p, C: c, ID: id, Parent: parent})
	return err
}

func (s *remote) Remove(ctx context.Context, p volref.Place, c volref.Credential, id string) error {
	_, err := s.call(ctx, "Remove", &Args{P: p, C: c, ID: id})
	return err
}

func (s *remote) Commit(ctx context.Context, p volref.Place, c volref.Credential, id string) error {
	_, err := s.call(ctx, "Commit", &Args{P: p, C: c, ID: id})
	return err
}

func (s *remote) Exists(ctx context.Context, p volref.Place, c volref.Credential, id string) (bool, error) {
	r, err := s.call(ctx, "Exists", &Args{P: p, C: c, ID: id})
	if err != nil {
		return false, err
	}
	return r.There, nil
}
