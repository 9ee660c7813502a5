package gear_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"example.org/slipway/gear"
)

// chunked returns a content of six chunks and a function that returns what is sent for n
// chunks from the first. Every other chunk is plain, as it is stored when a frame is no
// shorter.
func chunked(t testing.TB) (content []byte, send func(first, n int) []byte) {
	t.Helper()
	var chunks []gear.Chunk
	var stored [][]byte
	for i := range 6 {
		size := gear.ChunkSize
		if i == 5 {
			size = 300_000
		}
		chunk := letters(uint64(i), size)
		b := frame(t, chunk, nil)
		if i%2 == 1 {
			b = chunk
		}
		content, stored = append(content, chunk...), append(stored, b)
		chunks = append(chunks, gear.Chunk{Stored: uint32(len(b))})
	}
	return content, func(first, n int) []byte {
		return append(gear.AppendChunkLengths(nil, chunks[first:first+n]), slices.Concat(stored[first:first+n]...)...)
	}
}

// readInto reads everything, n bytes at a time.
func readInto(r io.Reader, n int) (out []byte, err error) {
	buf := make([]byte, n)
	for {
		k, err := r.Read(buf)
		out = append(out, buf[:k]...)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

func TestChunkReader(t *testing.T) {
	content, send := chunked(t)
	size := int64(len(content))
	for _, tt := range [][2]int{{0, 6}, {0, 1}, {1, 2}, {5, 1}, {4, 2}} {
		for _, step := range []int{1000, gear.ChunkSize, 3 * gear.ChunkSize} {
			r, err := gear.NewChunkReader(bytes.NewReader(send(tt[0], tt[1])), size, tt[0], tt[1])
			if err != nil {
				t.Fatal(err)
			}
			from := tt[0] * gear.ChunkSize
			want := content[from:min(from+tt[1]*gear.ChunkSize, len(content))]
			if got, err := readInto(r, step); err != nil || !bytes.Equal(got, want) {
				t.Errorf("chunks %v, %d bytes at a time: %d bytes, error %v, want %d", tt, step, len(got), err, len(want))
			}
		}
	}
}

func TestChunkReaderRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	content, send := chunked(t)
	size := int64(len(content))
	for _, tt := range [][2]int{{-1, 1}, {0, 0}, {0, 7}, {6, 1}, {5, 2}} {
		if _, err := gear.NewChunkReader(bytes.NewReader(send(0, 6)), size, tt[0], tt[1]); !errors.Is(err, gear.ErrFormat) {
			t.Errorf("chunks %v: error %v", tt, err)
		}
	}
	if _, err := gear.NewChunkReader(bytes.NewReader(send(0, 1)), 1000, 0, 1); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("of a small content: error %v", err)
	}
	whole := send(0, 6)
	for _, cut := range []int{0, 3, 23, 24, 25, len(whole) / 2, len(whole) - 1} {
		r, err := gear.NewChunkReader(bytes.NewReader(whole[:cut]), size, 0, 6)
		if err == nil {
			_, err = readInto(r, 100_000)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut off after %d bytes: error %v", cut, err)
		}
	}
	for what, length := range map[string]uint32{"nothing": 0, "more than it has": gear.ChunkSize + 1, "a part of a frame": 10} {
		b := slices.Clone(whole)
		binary.LittleEndian.PutUint32(b, length)
		r, err := gear.NewChunkReader(bytes.NewReader(b), size, 0, 6)
		if err == nil {
			_, err = readInto(r, 100_000)
		}
		if !errors.Is(err, gear.ErrFormat) || !errors.Is(err, gear.ErrContent) {
			t.Errorf("a chunk in %s: error %v", what, err)
		}
	}
}

func FuzzChunks(f *testing.F) {
	_, send := chunked(f)
	f.Add(send(0, 1), 0, 1)
	f.Add(send(4, 2), 4, 2)
	f.Add([]byte{1, 0, 0, 0, 9}, 5, 1)
	const size = 5*gear.ChunkSize + 300_000
	f.Fuzz(func(t *testing.T, b []byte, first, n int) {
		r, err := gear.NewChunkReader(bytes.NewReader(b), size, first, n)
		if err != nil {
			return
		}
		got, err := readInto(r, 70_000)
		whole := min((first+n)*gear.ChunkSize, size) - first*gear.ChunkSize
		if len(got) > whole || err == nil && len(got) != whole {
			t.Errorf("%d bytes of chunks that have %d, error %v", len(got), whole, err)
		}
	})
}
