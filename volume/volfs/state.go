package volfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"example.org/slipway/internal/durable"
	"example.org/slipway/node/fuse"
	"example.org/slipway/volume/block"
)

// stateVersion is the version of the state file. A server that finds another version is
// older or newer than its predecessor, and does not start.
const stateVersion = 1

// state is the content of the state file, as JSON: all that the next server must know. A
// change is written before it is acknowledged. Changes are rare: mapping, mounting and
// their ends.
type state struct {
	Version    int          `json:"version"`
	Connection uint32       `json:"connection"`
	Init       *initState   `json:"init,omitempty"`
	Next       uint64       `json:"next"`
	Files      []fileState  `json:"files"`
	Opens      []handleOpen `json:"opens"`
}

type initState struct {
	Minor uint64 `json:"minor"`
	Flags uint64 `json:"flags"`
}

type fileState struct {
	Node    uint64        `json:"node"`
	Size    int64         `json:"size"`
	Mapping block.Mapping `json:"mapping"`
}

type handleOpen struct {
	Handle uint64 `json:"handle"`
	Node   uint64 `json:"node"`
}

// parseState reads a state file. It returns nil if the file is of another connection.
func parseState(b []byte, conn uint32) (*state, error) {
	var st state
	if err := json.Unmarshal(b, &st); err != nil {
		return nil, err
	}
	if st.Version != stateVersion {
		return nil, fmt.Errorf("version %d, this program knows %d", st.Version, stateVersion)
	}
	if st.Connection != conn {
		return nil, nil
	}
	nodes, names := map[uint64]bool{}, map[string]bool{}
	for _, f := range st.Files {
		switch {
		case f.Node <= fuse.RootNode || f.Node >= st.Next || nodes[f.Node]:
			return nil, fmt.Errorf("file %q has node id %d", f.Mapping.Name, f.Node)
		case !validName(f.Mapping.Name) || names[f.Mapping.Name]:
			return nil, fmt.Errorf("two files are called %q, or none can be", f.Mapping.Name)
		case f.Size < 0:
			return nil, fmt.Errorf("file %q has %d bytes", f.Mapping.Name, f.Size)
		}
		nodes[f.Node], names[f.Mapping.Name] = true, true
	}
	return &st, nil
}

// load takes over what a predecessor left.
func (s *Server) load() error {
	if s.o.State == "" {
		return nil
	}
	b, err := os.ReadFile(s.o.State)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var st *state
	if err == nil {
		st, err = parseState(b, s.conn.Number)
	}
	if err != nil {
		return fmt.Errorf("read the state of the volumes in %s: %w", s.o.State, err)
	}
	if st == nil {
		return nil
	}
	s.next = max(st.Next, s.next)
	if st.Init != nil {
		s.init = &fuse.Settled{Minor: st.Init.Minor, Flags: st.Init.Flags}
	}
	for _, fs := range st.Files {
		f := s.newFile(fs.Node, fs.Size, fs.Mapping)
		s.files[f.node], s.named[fs.Mapping.Name] = f, f
	}
	for _, h := range st.Opens {
		if f := s.files[h.Node]; f != nil && s.opens[h.Handle] == nil {
			s.opens[h.Handle] = f
			f.opens++
		}
	}
	return nil
}

// save writes the state. The lock is held.
func (s *Server) save() error {
	if s.o.State == "" {
		return nil
	}
	st := state{Version: stateVersion, Connection: s.conn.Number, Next: s.next}
	if s.init != nil {
		st.Init = &initState{Minor: s.init.Minor, Flags: s.init.Flags}
	}
	for _, f := range s.files {
		st.Files = append(st.Files, fileState{Node: f.node, Size: f.size, Mapping: f.mapped()})
	}
	for h, f := range s.opens {
		st.Opens = append(st.Opens, handleOpen{Handle: h, Node: f.node})
	}
	b, err := json.Marshal(st)
	if err == nil {
		err = durable.WriteFile(s.o.State, b)
	}
	if err != nil {
		return fmt.Errorf("write the state of the volumes: %w", err)
	}
	return nil
}

func (s *Server) settled() *fuse.Settled {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.init
}

func (s *Server) saveInit(i fuse.Settled) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init = &i
	return s.save()
}

// opened counts a handle of a file, durably for a successor, before the open is answered.
// The handle is the number of the request, so that a repeated request counts once. opened
// returns false if the file is gone.
func (s *Server) opened(handle uint64, f *file) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opens[handle] != nil {
		return true, nil
	}
	if s.files[f.node] != f {
		return false, nil
	}
	s.opens[handle] = f
	f.opens++
	err := s.save()
	if err != nil {
		delete(s.opens, handle)
		f.opens--
	}
	return err == nil, err
}

// released undoes opened. Unknown handles have been released already.
func (s *Server) released(handle uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.opens[handle]
	if f == nil {
		return
	}
	delete(s.opens, handle)
	f.opens--
	if err := s.save(); err != nil {
		s.log.Error("note the release of a volume's file", "err", err) // a successor will think it is open
	}
}

// maxName is the longest name of a file, in bytes.
const maxName = 255

// validName reports whether a file can have that name.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName && !strings.ContainsAny(name, "/\x00")
}

// nameLocks are locks by name. The zero value is ready.
type nameLocks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when it is given back
}

func (l *nameLocks) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		wait := l.held[name]
		if wait == nil {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			done := make(chan struct{})
			l.held[name] = done
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, name)
				l.mu.Unlock()
				close(done)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
