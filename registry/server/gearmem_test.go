package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/registry/server"
)

type name = [32]byte

// memGear is the extension in memory. Its frames are a name, a length in 8 bytes, and the content.
type memGear struct {
	mu       sync.Mutex
	files    map[string]map[name][]byte // by repository
	layers   map[string]map[oci.Digest]name
	pending  map[oci.Digest]*server.GearPendingError
	profiles map[string][]name // by repository and digest
	open     int               // contents that were not closed

	// breakAt makes reads fail at this byte of a content or stream. 0 means never.
	breakAt int
	// hold, if not nil, blocks the middle of a stream after a flush.
	hold chan struct{}
	// short makes Missing answer for none of the names.
	short bool
}

func newMemGear() *memGear {
	return &memGear{files: map[string]map[name][]byte{}, layers: map[string]map[oci.Digest]name{},
		pending: map[oci.Digest]*server.GearPendingError{}, profiles: map[string][]name{}}
}

func (m *memGear) add(repo string, content []byte) name {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[repo] == nil {
		m.files[repo] = map[name][]byte{}
	}
	n := name(sha256.Sum256(content))
	m.files[repo][n] = content
	return n
}

func (m *memGear) addLayer(repo string, layer oci.Digest, index []byte) name {
	n := m.add(repo, index)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.layers[repo] == nil {
		m.layers[repo] = map[oci.Digest]name{}
	}
	m.layers[repo][layer] = n
	return n
}

func (m *memGear) unclosed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open
}

var errBroken = errors.New("the pack is broken at sector 17")

type memGearContent struct {
	m      *memGear
	name   name
	data   []byte
	closed bool
}

func (c *memGearContent) Name() name  { return c.name }
func (c *memGearContent) Size() int64 { return int64(len(c.data)) }

func (c *memGearContent) WriteRange(_ context.Context, w io.Writer, off, n int64) error {
	part := c.data[off : off+n]
	if at := c.m.breakAt; at > 0 {
		if at > 1 {
			if _, err := w.Write(part[:at-1]); err != nil {
				return err
			}
		}
		return errBroken
	}
	_, err := w.Write(part)
	return err
}

// WriteChunks treats every ten bytes as a chunk.
func (c *memGearContent) WriteChunks(ctx context.Context, w io.Writer, first, n int, begin func(length int64)) error {
	if n < 1 || n > len(c.data)/10-first {
		return oci.Errorf(oci.CodeRangeInvalid, "it has %d chunks", len(c.data)/10)
	}
	begin(int64(10 * n))
	return c.WriteRange(ctx, w, int64(10*first), int64(10*n))
}

func (c *memGearContent) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.m.open--
	}
	return nil
}

func (m *memGear) Layer(ctx context.Context, repo string, layer oci.Digest) (server.GearIndex, error) {
	m.mu.Lock()
	n, ok := m.layers[repo][layer]
	p := m.pending[layer]
	m.mu.Unlock()
	switch {
	case !ok && p != nil && repo == "alice/app":
		return nil, fmt.Errorf("open layer: %w", p)
	case !ok:
		// The content of other repositories must make no difference.
		return nil, oci.Errorf(oci.CodeBlobUnknown, "%s is not in %s but in others", layer, repo)
	}
	c, err := m.File(ctx, repo, n)
	if err != nil {
		return nil, err
	}
	return memGearIndex{c}, nil
}

// memGearIndex has a diff ID that is its name's bytes in reverse.
type memGearIndex struct{ server.GearContent }

func (x memGearIndex) DiffID() [32]byte { return reversed(x.Name()) }

func reversed(n name) name {
	slices.Reverse(n[:])
	return n
}

func (m *memGear) File(_ context.Context, repo string, n name) (server.GearContent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[repo][n]
	if !ok {
		elsewhere := ""
		for other, files := range m.files {
			if files[n] != nil {
				elsewhere = ", but in " + other
			}
		}
		return nil, oci.Errorf(oci.CodeBlobUnknown, "%x is not in %s%s", n, repo, elsewhere)
	}
	m.open++
	return &memGearContent{m: m, name: n, data: data}, nil
}

func appendFrame(b []byte, n name, data []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, n[:]...), uint64(len(data)))
	return append(b, data...)
}

func (m *memGear) Fetch(ctx context.Context, repo string, names []name, w io.Writer) error {
	m.mu.Lock()
	var stream []byte
	for _, n := range names {
		data, ok := m.files[repo][n]
		if !ok {
			m.mu.Unlock()
			return oci.Errorf(oci.CodeBlobUnknown, "%x is not in %s", n, repo)
		}
		stream = appendFrame(stream, n, data)
	}
	m.mu.Unlock()
	if m.breakAt > 0 {
		if _, err := w.Write(stream[:m.breakAt-1]); err != nil {
			return err
		}
		return errBroken
	}
	if m.hold != nil {
		w.(http.Flusher).Flush() // with nothing to flush
		if _, err := w.Write(stream[:1]); err != nil {
			return err
		}
		w.(http.Flusher).Flush()
		select {
		case <-m.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
		stream = stream[1:]
	}
	for part := range slices.Chunk(stream, 1000) {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// Pack leaves out the empty file.
func (m *memGear) Pack(_ context.Context, repo string, _ oci.Digest, names []name) ([]name, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(names), func(n name) bool { return len(m.files[repo][n]) == 0 }), nil
}

func (m *memGear) Missing(_ context.Context, repo string, names []name) ([]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.short {
		return nil, nil
	}
	missing := make([]bool, len(names))
	for i, n := range names {
		missing[i] = m.files[repo][n] == nil
	}
	return missing, nil
}

func (m *memGear) PutFile(_ context.Context, repo string, n name, size int64, body io.Reader) error {
	b, err := io.ReadAll(body)
	switch {
	case err != nil:
		return fmt.Errorf("spool: %w", errors.New("hidden")) // in its own words
	case size >= 0 && int64(len(b)) != size:
		return oci.Errorf(oci.CodeSizeInvalid, "%d bytes of %d", len(b), size)
	case sha256.Sum256(b) != n:
		return oci.Errorf(oci.CodeDigestInvalid, "the content is another one")
	}
	m.add(repo, b)
	return nil
}

func (m *memGear) PutFiles(ctx context.Context, repo string, stream io.Reader) (int, error) {
	for count := 0; ; count++ {
		var head [40]byte
		switch _, err := io.ReadFull(stream, head[:]); {
		case err == io.EOF:
			return count, nil
		case err != nil:
			return count, oci.Errorf(oci.CodeSizeInvalid, "the stream ends within a frame")
		}
		if err := m.PutFile(ctx, repo, name(head[:32]), -1, io.LimitReader(stream, int64(binary.BigEndian.Uint64(head[32:])))); err != nil {
			return count, err
		}
	}
}

func (m *memGear) Profile(_ context.Context, repo string, manifest oci.Digest) (server.GearProfile, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := server.GearProfile{Names: m.profiles[repo+"@"+string(manifest)]}
	if strings.HasSuffix(repo, "/inferred") {
		p.Origins, p.Donor = strings.Repeat("s", len(p.Names)), oci.SHA256([]byte("donor"))
	}
	return p, nil
}

func (m *memGear) ReportProfile(_ context.Context, repo string, manifest oci.Digest, names []name, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if manifest == oci.SHA256([]byte("no manifest")) {
		return oci.Errorf(oci.CodeManifestUnknown, "no manifest")
	}
	m.profiles[repo+"@"+string(manifest)] = names
	return nil
}
