package gear

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/wire"
)

// largeFile returns the size in bytes of the file from which ranges are read.
func (b *bench) largeFile() int64 {
	if b.Run.Quick {
		return 128 << 20
	}
	return 1 << 30
}

// ranges measures reads of ranges in a large file, from a server that holds nothing else.
func (b *bench) ranges(ctx context.Context) (*ServingCase, error) {
	s, err := b.server(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer b.drop(s)
	dir := b.NewDir()
	defer os.RemoveAll(dir)
	size := b.largeFile()
	im, err := largeImage(dir, size)
	if err != nil {
		return nil, err
	}
	const repo = "bench/large"
	if _, err := s.pushImage(ctx, im, repo, "1"); err != nil {
		return nil, err
	}
	layer := im.Layers[0].Digest
	if _, err := s.waitIndex(ctx, repo, layer); err != nil {
		return nil, err
	}
	if err := s.waitStored(ctx); err != nil {
		return nil, err
	}
	index, err := s.read(ctx, s.gear(repo, "layers/"+layer))
	if err != nil {
		return nil, err
	}
	x, err := gear.Decode(bytes.NewReader(index), nil)
	if err != nil {
		return nil, err
	}
	if len(x.Files) != 1 || x.Files[0].Size != size {
		return nil, errors.New("the index does not hold the one large file")
	}
	url := s.gear(repo, "files/sha256:"+hex.EncodeToString(x.Files[0].Name[:]))
	stored, err := s.storedLength(hex.EncodeToString(x.Files[0].Name[:]))
	if err != nil {
		return nil, err
	}
	// A range touches one chunk, and in a fraction of the cases a second one.
	touched := 1 + float64(rangeLen-1)/gear.ChunkSize
	c := &ServingCase{Case: caseRange, Files: 1, Needed: float64(stored) / float64(size/gear.ChunkSize) * touched}
	for round := 1; round <= b.Run.Rounds; round++ {
		x, err := s.rangeSample(ctx, url, size)
		if err != nil {
			return nil, err
		}
		x.Round = round
		c.Slipway = append(c.Slipway, x)
		b.Logf("%s %d/%d  %s KiB read, %s server CPU ms", c.Case, round, b.Run.Rounds, measure.Figure(float64(x.Read)/float64(x.Ops)/1024), measure.Figure(x.cpuMs()))
	}
	return c, nil
}

// storedLength returns the number of bytes that a content takes in a pack.
func (s *server) storedLength(name string) (int64, error) {
	packs, err := s.livePacks()
	if err != nil {
		return 0, err
	}
	for _, p := range packs {
		for _, f := range p.files {
			if f.name == name {
				return f.stored, nil
			}
		}
	}
	return 0, fmt.Errorf("content %s is in no pack", name)
}

// rangeSample reads ranges and compares them with the expected bytes.
func (s *server) rangeSample(ctx context.Context, url string, size int64) (Sample, error) {
	serial := uint64(time.Now().UnixNano())
	do := func(ctx context.Context, buf []byte, i int) (int64, error) {
		off := rand.New(rand.NewPCG(serial, uint64(i))).Int64N(size - rangeLen)
		header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", off, off+rangeLen-1)}}
		resp, err := s.do(ctx, http.StatusPartialContent, http.MethodGet, url, header, nil, 0)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		got := buf[:rangeLen]
		if _, err := io.ReadFull(resp.Body, got); err != nil {
			return 0, err
		}
		if !bytes.Equal(got, largeContent(off, rangeLen)) {
			return 0, fmt.Errorf("%d bytes from %d on are not those of the file", rangeLen, off)
		}
		return rangeLen, nil
	}
	before, err := s.readBytes()
	if err != nil {
		return Sample{}, err
	}
	// The bytes read include the requests, also the requests of the unmeasured tenth. The
	// number of requests is known from the first and the last.
	var all int
	counted := func(ctx context.Context, buf []byte, i int) (int64, error) { all++; return do(ctx, buf, i) } // there is only one client
	x, err := underLoad(ctx, s, 1, servingSlice/2, counted)
	if err != nil {
		return Sample{}, err
	}
	after, err := s.readBytes()
	x.Read = (after - before) * int64(x.Ops) / int64(all)
	return x, err
}

// readBytes returns the number of bytes that the server's system calls have read from files and
// connections.
func (s *server) readBytes() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.process.Pid()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "rchar: "); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, errors.New("the kernel does not say what a process has read")
}

// largeBlock is the length of a piece of the large file, in bytes. Half of each piece does not
// compress.
const largeBlock = 4 << 10

// largeContent returns n bytes of the large file from off on.
func largeContent(off int64, n int) []byte {
	out := make([]byte, 0, n+2*largeBlock)
	skip := int(off % largeBlock)
	block := make([]byte, largeBlock)
	for at := off / largeBlock; len(out) < n+skip; at++ {
		var seed [32]byte
		copy(seed[:], strconv.FormatInt(at, 10))
		r := rand.NewChaCha8(seed)
		_, _ = r.Read(block[:largeBlock/2]) // never fails
		copy(block[largeBlock/2:], block[:largeBlock/2])
		out = append(out, block...)
	}
	return out[skip : skip+n]
}

// largeImage writes an image whose uncompressed layer holds one file.
func largeImage(dir string, size int64) (*image, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "layer")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sum := sha256.New()
	buf := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<20)
	w := tar.NewWriter(buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "large", Mode: 0o644, Size: size}); err != nil {
		return nil, err
	}
	for off := int64(0); off < size; off += 1 << 20 {
		if _, err := w.Write(largeContent(off, int(min(1<<20, size-off)))); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), buf.Flush()); err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	digest := "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return newImage(filepath.Join(dir, "layout"), "large", wire.Descriptor{MediaType: plainType, Digest: digest, Size: fi.Size()}, path, digest)
}
