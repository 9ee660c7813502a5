package filestore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"math"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// packBuffer is how many bytes are written to the object store at a time.
const packBuffer = 256 << 10

// packWriter writes one pack. The pack's digest is the SHA-256 of the object, so equal
// contents in equal order make the same pack, whoever writes it.
type packWriter struct {
	s     *Store
	up    objstore.Upload
	hash  hash.Hash
	buf   []byte
	off   int64
	dict  []byte // in its stored form
	files []gearfacts.File
}

func (s *Store) newPack(ctx context.Context, dict []byte) (*packWriter, error) {
	up, err := s.objs.NewUpload(ctx, -1)
	if err != nil {
		return nil, fmt.Errorf("begin pack: %w", err)
	}
	p := &packWriter{s: s, up: up, hash: sha256.New(), buf: make([]byte, 0, packBuffer), dict: dict}
	if err := p.write(packfile.Header(dict)); err != nil {
		p.cancel(ctx)
		return nil, err
	}
	return p, nil
}

// write appends bytes.
func (p *packWriter) write(b []byte) error {
	p.off += int64(len(b))
	for len(b) > 0 {
		n := min(len(b), cap(p.buf)-len(p.buf))
		p.buf = append(p.buf, b[:n]...)
		b = b[n:]
		if len(p.buf) == cap(p.buf) {
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *packWriter) flush() error {
	p.hash.Write(p.buf)
	if _, err := p.up.Write(p.buf); err != nil {
		return fmt.Errorf("write pack: %w", err)
	}
	p.buf = p.buf[:0]
	return nil
}

// add adds a content that consists of the bytes written since start.
func (p *packWriter) add(name gear.Name, size int64, e gear.Encoding, start int64) error {
	f := gearfacts.File{Name: name, Size: size, Off: start, Stored: p.off - start, Encoding: uint8(e)}
	if err := gear.CheckStored(f.Size, e, f.Stored); err != nil {
		return err
	}
	p.files = append(p.files, f)
	return nil
}

// full reports whether the pack is full.
func (p *packWriter) full() bool {
	return p.off >= p.s.opts.PackSize || len(p.files) >= min(packfile.MaxFiles, math.MaxInt32)
}

// finish stores the pack as an object. Before that it records the writer's intent, so
// that the object is known whatever happens next. The packWriter cannot be used
// afterwards.
func (p *packWriter) finish(ctx context.Context, writer string) (gearfacts.NewPack, error) {
	defer p.cancel(ctx)
	if err := errors.Join(p.write(packfile.Footer(p.dict, p.files)), p.flush()); err != nil {
		return gearfacts.NewPack{}, err
	}
	pack := gearfacts.NewPack{Digest: gear.Name(p.hash.Sum(nil)), Size: p.off, Files: p.files}
	for i := range p.files {
		pack.Bytes += p.files[i].Stored
	}
	for wait, end := 10*time.Millisecond, time.Now().Add((deletingFor+1)*p.s.opts.Lease); ; wait = min(2*wait, time.Second) {
		err := p.s.facts.Intend(ctx, writer, pack.Digest)
		if err == nil {
			break
		}
		if !errors.Is(err, gearfacts.ErrDeleting) || ctx.Err() != nil || time.Now().After(end) {
			return pack, fmt.Errorf("announce pack %x: %w", pack.Digest, err)
		}
		// An equal pack is being deleted. Its object must be gone before this object is
		// stored.
		if err := p.s.deletePacks(ctx); err != nil {
			return pack, fmt.Errorf("make room for pack %x: %w", pack.Digest, err)
		}
		if p.s.cat.DB.Shared() { // another process may be deleting it
			time.Sleep(wait)
		}
	}
	if err := p.up.Commit(ctx, packKey(pack.Digest)); err != nil {
		return pack, fmt.Errorf("store pack %x: %w", pack.Digest, err)
	}
	return pack, nil
}

// cancel drops a pack that was not finished.
func (p *packWriter) cancel(ctx context.Context) {
	if err := p.up.Cancel(context.WithoutCancel(ctx)); err != nil {
		p.s.log.Warn("drop an unfinished pack", "err", err)
	}
}
