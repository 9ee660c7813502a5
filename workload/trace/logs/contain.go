package logs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"example.org/slipway/workload/trace"
)

const (
	// sniffSize is the number of bytes at the start of a file that are read to detect what it is.
	sniffSize = 64 << 10
	// maxNesting is the maximum nesting of compressed files in archives in compressed files.
	maxNesting = 4
	// maxWindow bounds the memory of a zstd or xz decoder. 128 MiB is what zstd --long uses by
	// default; xz -9 uses half of it.
	maxWindow = 128 << 20
)

// stream reads a file, or what was compressed or archived in it.
func (in *Input) stream(ctx context.Context, r io.Reader, name string, depth int, fn func(Source, *trace.Record) error) error {
	br := bufio.NewReaderSize(&stickyReader{r: r}, sniffSize)
	head, _ := br.Peek(sniffSize) // an error comes again when it is read
	if depth < maxNesting {
		z, closed, err := decompressor(br, head)
		if err != nil {
			in.Skip(trace.BadFile, name, 0, err.Error())
			return nil
		}
		if z != nil {
			defer closed()
			return in.stream(ctx, z, name, depth+1, fn)
		}
		if len(head) > 262 && string(head[257:262]) == "ustar" {
			return in.archive(ctx, br, name, depth+1, fn)
		}
	}
	text := newText(newTextReader(br, head))
	if err := skipBlank(text.Reader); err != nil {
		if !errors.Is(err, io.EOF) {
			in.Skip(trace.BadFile, name, 0, err.Error())
		}
		return nil // empty
	}
	head, _ = text.Peek(sniffSize)
	dec, err := in.decoder(ctx, text, head)
	if err != nil {
		return err
	}
	return in.records(ctx, dec, name, fn)
}

// decompressor returns a reader of compressed data, or nil if the data is not compressed.
func decompressor(r io.Reader, head []byte) (z io.Reader, closed func(), err error) {
	closed = func() {}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, closed, err
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), skippableFrame(head):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, closed, err
		}
		return z, z.Close, nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		if size := xzWindow(head); size > maxWindow {
			return nil, closed, fmt.Errorf("its dictionary takes %d MiB, above the limit of %d", size>>20, maxWindow>>20)
		}
		z, err := xz.NewReader(bufio.NewReader(r))
		return z, closed, err
	case len(head) > 10 && string(head[:3]) == "BZh" && head[3] >= '1' && head[3] <= '9' && string(head[4:10]) == "1AY&SY":
		return bzip2.NewReader(r), closed, nil
	}
	return nil, closed, nil
}

// skippableFrame reports whether a file begins with a zstd frame that holds no data. Programs that
// compress in parallel write such frames.
func skippableFrame(head []byte) bool {
	return len(head) > 3 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
}

// xzWindow returns the dictionary size in the header of the first block of an xz file, or 0 if it
// is missing: .xz file format 1.2.1, sections 3.1 and 5.3.1.
func xzWindow(head []byte) int64 {
	const streamHeader = 12
	if len(head) < streamHeader+2 {
		return 0
	}
	flags, b := head[streamHeader+1], head[streamHeader+2:]
	for _, present := range []byte{0x40, 0x80} { // sizes of the compressed and of the uncompressed data
		if flags&present != 0 {
			_, n := binary.Uvarint(b)
			if n <= 0 {
				return 0
			}
			b = b[n:]
		}
	}
	if len(b) < 3 || b[0] != 0x21 || b[1] != 1 || b[2] > 40 { // LZMA2
		return 0
	}
	return int64(2|b[2]&1) << (b[2]/2 + 11)
}

// archive reads the regular files of a tar archive.
func (in *Input) archive(ctx context.Context, r io.Reader, name string, depth int, fn func(Source, *trace.Record) error) error {
	var fronts map[string]string // once it is needed
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			in.Skip(trace.BadFile, name, 0, err.Error())
			return nil
		}
		if h.Typeflag != tar.TypeReg || strings.HasPrefix(filepath.Base(h.Name), ".") {
			continue
		}
		if harborPart(h.Name) {
			if fronts == nil {
				fronts = harborProxies(ctx, name)
			}
			if front, ok := fronts[filepath.Dir(h.Name)]; ok {
				in.Skip(trace.BadRepeated, name+":"+h.Name, 0, fmt.Sprintf("it repeats the requests of %q", front))
				continue
			}
		}
		if err := in.stream(ctx, tr, name+":"+h.Name, depth, fn); err != nil {
			return err
		}
	}
}

// harborPart reports whether a file of an archive has a name that Harbor gives to logs
// that repeat the logs of its proxy.
func harborPart(name string) bool {
	part, _, ok := strings.Cut(filepath.Base(name), ".log")
	return ok && (part == "core" || part == "registry" || part == "portal")
}

// harborProxies returns the logs of Harbor's proxy in an archive, by directory. It goes
// by the names only. The archive is read once more, because a file may come after the
// files that repeat it. An archive that cannot be read again, such as a pipe, has none.
func harborProxies(ctx context.Context, path string) map[string]string {
	fronts := map[string]string{}
	f, err := os.Open(path)
	if err != nil {
		return fronts
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return fronts
	}
	var r io.Reader = &rawReader{r: f, n: new(atomic.Int64), ended: ctx.Err}
	for range maxNesting {
		br := bufio.NewReaderSize(&stickyReader{r: r}, sniffSize)
		head, _ := br.Peek(sniffSize)
		z, closed, err := decompressor(br, head)
		if err != nil {
			return fronts
		}
		if r = br; z == nil {
			break
		}
		defer closed()
		r = z
	}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err != nil {
			return fronts
		}
		if h.Typeflag == tar.TypeReg && h.Size > 0 && strings.HasPrefix(filepath.Base(h.Name), "proxy.log") {
			fronts[filepath.Dir(h.Name)] = h.Name
		}
	}
}
