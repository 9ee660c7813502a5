package gear

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// packDir is where a server with a local disk keeps its packs, below its root.
const packDir = "slipway/gear/packs"

// pack is the content of the two ends of a pack, read according to docs/formats/gear-pack.md and
// not with the program's own reader.
type pack struct {
	made  time.Time
	size  int64
	dict  int64 // stored length of the dictionary
	files []packed
}

// packed is a content in a pack.
type packed struct {
	name         string // 64 hex digits
	size, stored int64
	encoding     byte
}

const (
	packTrailer = 48
	packEntry   = 49
)

// listPacks returns the ids of the packs of a server, sorted, with their sizes.
func (s *server) listPacks() (map[string]int64, error) {
	out := map[string]int64{}
	err := filepath.WalkDir(filepath.Join(s.root(), packDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			out[d.Name()] = fi.Size()
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	return out, err
}

// livePacks returns the packs of a server that are in use. Packs that settling has
// replaced stay on the disk for some minutes, but newer packs hold everything in them.
func (s *server) livePacks() ([]*pack, error) {
	ids, err := s.listPacks()
	if err != nil {
		return nil, err
	}
	var all []*pack
	for id := range ids {
		p, err := s.readPack(id)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *pack) int { return b.made.Compare(a.made) })
	newer := map[string]bool{}
	var out []*pack
	for _, p := range all {
		alive := false
		for _, f := range p.files {
			alive = alive || !newer[f.name]
			newer[f.name] = true
		}
		if alive {
			out = append(out, p)
		}
	}
	return out, nil
}

// readPack reads the table of a pack of a server.
func (s *server) readPack(id string) (*pack, error) {
	f, err := os.Open(filepath.Join(s.root(), packDir, id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p, err := parsePack(f, fi.Size())
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", id, err)
	}
	p.made = fi.ModTime()
	return p, nil
}

func parsePack(r io.ReaderAt, size int64) (*pack, error) {
	if size < 12+packTrailer {
		return nil, errors.New("too short")
	}
	head, trailer := make([]byte, 12), make([]byte, packTrailer)
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if _, err := r.ReadAt(trailer, size-packTrailer); err != nil {
		return nil, err
	}
	if string(head[:8]) != "SLGPACK\x01" || string(trailer[40:]) != "SLGPEND\x01" {
		return nil, errors.New("not a pack of version 1")
	}
	p := &pack{size: size, dict: int64(binary.LittleEndian.Uint32(head[8:]))}
	n := int64(binary.LittleEndian.Uint32(trailer))
	begin := size - packTrailer - n*packEntry
	if begin < 12+p.dict {
		return nil, fmt.Errorf("%d entries do not fit into it", n)
	}
	table := make([]byte, n*packEntry)
	if _, err := r.ReadAt(table, begin); err != nil {
		return nil, err
	}
	at := 12 + p.dict
	for ; len(table) > 0; table = table[packEntry:] {
		f := packed{hex.EncodeToString(table[:32]), int64(binary.LittleEndian.Uint64(table[32:])), int64(binary.LittleEndian.Uint64(table[40:])), table[48]}
		if f.stored < 0 || f.stored > begin-at {
			return nil, fmt.Errorf("content %s reaches beyond the contents", f.name)
		}
		at += f.stored
		p.files = append(p.files, f)
	}
	if at != begin {
		return nil, fmt.Errorf("the contents end at %d, the table begins at %d", at, begin)
	}
	return p, nil
}
