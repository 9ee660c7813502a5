package gear_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
)

// frame compresses b as packs do, with a dictionary unless dict is nil.
func frame(t testing.TB, b, dict []byte) []byte {
	t.Helper()
	var opts []zstd.EOption
	if dict != nil {
		opts = append(opts, zstd.WithEncoderDict(dict))
	}
	z, err := zstd.NewWriter(nil, append(opts, zstd.WithEncoderCRC(false))...)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(b, nil)
}

func dictOf(t testing.TB, b []byte) []byte {
	t.Helper()
	d, err := zstd.BuildDict(zstd.BuildDictOptions{ID: 32768, Contents: [][]byte{letters(77, 4000), letters(78, 4000), []byte("0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ")}, History: b, Offsets: [3]int{1, 4, 8}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// letters returns compressible bytes. The same seed gives the same bytes.
func letters(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 3))
	words := []string{"gear ", "index of files ", "layer ", "a content ", "chunk by chunk, ", "pack "}
	var b []byte
	for len(b) < n {
		b = append(append(b, words[r.IntN(len(words))]...), byte('a'+r.IntN(26)))
	}
	return b[:n]
}

// TestDictionariesOnly checks that reading ends when a stream holds nothing but
// dictionaries.
func TestDictionariesOnly(t *testing.T) {
	dict := frame(t, dictOf(t, letters(1, 20_000)), nil)
	var out bytes.Buffer
	w := gear.NewStreamWriter(&out)
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	stream := out.Bytes()[:8] // the magic
	for i := range 2 * gear.StreamSlots {
		stream = append(stream, 1, byte(i%gear.StreamSlots))
		stream = binary.LittleEndian.AppendUint32(stream, uint32(len(dict)))
		stream = append(stream, dict...)
	}
	if _, err := gear.NewStreamReader(bytes.NewReader(stream)).Next(); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("got %v", err)
	}
}

// streamed returns a stream with a record of each kind, and the contents in it.
func streamed(t testing.TB) (stream []byte, contents [][]byte) {
	t.Helper()
	var out bytes.Buffer
	w := gear.NewStreamWriter(&out)
	put := func(content []byte, e gear.Encoding, stored, dict []byte, id gear.Name) {
		t.Helper()
		contents = append(contents, content)
		f := gear.StreamFile{Name: sha256.Sum256(content), Size: int64(len(content)), Encoding: e, Stored: int64(len(stored)), Dict: id}
		if err := w.Begin(f, dict); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(stored); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte("plain"), gear.Plain, []byte("plain"), nil, gear.Name{})
	put(nil, gear.Plain, nil, nil, gear.Name{})
	text := letters(1, 8000)
	put(text, gear.Zstd, frame(t, text, nil), nil, gear.Name{})
	for i := range byte(gear.StreamSlots + 3) { // more than there are slots
		dict := dictOf(t, letters(uint64(i), 8000))
		small := append(letters(uint64(i), 8000)[100:900], i)
		put(small, gear.ZstdDict, frame(t, small, dict), frame(t, dict, nil), gear.Name{i, 1})
		put(small, gear.ZstdDict, frame(t, small, dict), frame(t, dict, nil), gear.Name{i, 1})
	}
	large := append(letters(2, 3<<20), bytes.Repeat([]byte{1}, 2<<20+5)...)
	var chunks []gear.Chunk
	var body []byte
	for i := range gear.ChunkCount(int64(len(large))) {
		c := large[i<<20:][:gear.ChunkLen(int64(len(large)), i)]
		z := c
		if packed := frame(t, c, nil); i != 1 && len(packed) < len(c) {
			z = packed
		}
		chunks = append(chunks, gear.Chunk{Stored: uint32(len(z)), Name: sha256.Sum256(c)})
		body = append(body, z...)
	}
	put(large, gear.Chunked, append(gear.AppendChunkTable(nil, chunks), body...), nil, gear.Name{})
	if err := errors.Join(w.Missing(gear.Name{1}), w.Failure(gear.Name{2}, "why"), w.End()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), contents
}

func TestStream(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	stream, contents := streamed(t)
	r := gear.NewStreamReader(bytes.NewReader(stream))
	for i, want := range contents {
		it, err := r.Next()
		if err != nil {
			t.Fatalf("content %d: %v", i, err)
		}
		var got bytes.Buffer
		if _, err := it.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), want) || it.Size != int64(len(want)) {
			t.Fatalf("content %d of %d bytes: got %d, %v", i, len(want), got.Len(), err)
		}
	}
	if it, err := r.Next(); err != nil || !it.Missing || it.Name != (gear.Name{1}) {
		t.Errorf("missing: %+v, %v", it, err)
	}
	if it, err := r.Next(); err != nil || it.Failure != "why" || it.Name != (gear.Name{2}) {
		t.Errorf("failure: %+v, %v", it, err)
	}
	for range 2 {
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("end: %v", err)
		}
	}
}

// read reads a stream and returns the number of its items, and an error if any part is
// invalid.
func read(r *gear.StreamReader) (items int, err error) {
	for {
		it, err := r.Next()
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return items, err
		}
		items++
		if it.Missing || it.Failure != "" {
			continue
		}
		if _, err := it.WriteTo(io.Discard); err != nil {
			return items, err
		}
	}
}

// TestStreamRun writes several contents in one record, also with dictionaries.
func TestStreamRun(t *testing.T) {
	var enc gear.StreamEncoder
	dict := dictOf(t, letters(1, 8000))
	id := gear.Name{7}
	var files []gear.StreamFile
	var stored []byte
	var contents [][]byte
	add := func(content []byte, e gear.Encoding, z []byte) {
		f := gear.StreamFile{Name: sha256.Sum256(content), Size: int64(len(content)), Encoding: e, Stored: int64(len(z))}
		if e == gear.ZstdDict {
			f.Dict = id
		}
		files, stored, contents = append(files, f), append(stored, z...), append(contents, content)
	}
	one, two := letters(1, 600), letters(2, 600)
	plain, dense := frame(t, one, nil), frame(t, two, dict)
	for i := range gear.StreamRun {
		switch i % 3 {
		case 0:
			c := letters(uint64(i), 50+i)
			add(c, gear.Plain, c)
		case 1:
			add(one, gear.Zstd, plain)
		case 2:
			add(two, gear.ZstdDict, dense)
		}
	}
	describe := func(i int) gear.StreamFile { return files[i] }
	if _, err := enc.AppendContents(nil, len(files)+1, describe); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := enc.AppendContents(nil, 0, describe); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("none: %v", err)
	}
	enc = gear.StreamEncoder{}
	if _, err := enc.AppendContents(nil, len(files), describe); err == nil {
		t.Error("contents whose dictionary was not sent")
	}
	enc = gear.StreamEncoder{}
	stream, err := enc.AppendDict(nil, id, frame(t, dict, nil))
	if err != nil || !enc.HasDict(id) || enc.HasDict(gear.Name{8}) {
		t.Fatalf("dictionary: %v", err)
	}
	for range 2 { // the second pass reuses the dictionary
		want := len(stream) + enc.ContentsLen(len(files))
		if stream, err = enc.AppendContents(stream, len(files), describe); err != nil || len(stream) != want {
			t.Fatalf("%d bytes, want %d: %v", len(stream), want, err)
		}
		stream = append(stream, stored...)
		stream = enc.AppendMissing(stream, gear.Name{1})
	}
	stream = enc.AppendEnd(stream)
	r := gear.NewStreamReader(bytes.NewReader(stream))
	for range 2 {
		for i, want := range contents {
			it, err := r.Next()
			if err != nil || !bytes.Equal(it.Bytes(), want) {
				t.Fatalf("content %d: got %+v, %v", i, it, err)
			}
		}
		if it, err := r.Next(); err != nil || !it.Missing {
			t.Fatalf("got %+v, %v; want a missing one", it, err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("end: %v", err)
	}
}

// TestStreamRunBounds checks that a record must have at least one content and not too
// many.
func TestStreamRunBounds(t *testing.T) {
	for _, n := range []uint16{0, gear.StreamRun + 1, 0xffff} {
		b := binary.LittleEndian.AppendUint16([]byte("SLGSTRM\x01\x02"), n)
		b = append(b, make([]byte, 1<<16)...)
		if _, err := gear.NewStreamReader(bytes.NewReader(b)).Next(); !errors.Is(err, gear.ErrFormat) {
			t.Errorf("%d contents: got %v, want ErrFormat", n, err)
		}
	}
}

func TestStreamSkipsWhatIsNotRead(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	stream, contents := streamed(t)
	r := gear.NewStreamReader(bytes.NewReader(stream))
	n := 0
	for {
		_, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != len(contents)+2 {
		t.Errorf("%d items, want %d", n, len(contents)+2)
	}
}

func TestStreamCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	stream, _ := streamed(t)
	for n := 0; n < len(stream); n += 1 + n/50 {
		if _, err := read(gear.NewStreamReader(bytes.NewReader(stream[:n]))); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d of %d: %v, want ErrUnexpectedEOF", n, len(stream), err)
		}
	}
}

func TestStreamDamaged(t *testing.T) {
	content := letters(4, 3000)
	var out bytes.Buffer
	w := gear.NewStreamWriter(&out)
	z := frame(t, content, nil)
	err := w.Begin(gear.StreamFile{Name: sha256.Sum256(content), Size: 3000, Encoding: gear.Zstd, Stored: int64(len(z))}, nil)
	if err == nil {
		_, err = w.Write(z)
	}
	if err := errors.Join(err, w.End()); err != nil {
		t.Fatal(err)
	}
	for i := range out.Len() {
		bad := bytes.Clone(out.Bytes())
		bad[i] ^= 1 << (i % 8)
		r := gear.NewStreamReader(bytes.NewReader(bad))
		it, err := r.Next()
		if err == nil && bytes.Equal(it.Bytes(), content) {
			_, err = r.Next() // the damage comes later, or does not affect the content
			if i >= out.Len()-9 && (err == nil || err == io.EOF) {
				t.Errorf("byte %d of the end changed, unnoticed", i)
			}
			continue
		}
		if err == nil && !it.Missing && it.Failure == "" {
			t.Fatalf("byte %d of %d changed: got another content", i, out.Len())
		}
	}
}

func TestStreamWriterRefuses(t *testing.T) {
	w := gear.NewStreamWriter(io.Discard)
	if err := w.Begin(gear.StreamFile{Size: 5, Encoding: gear.Plain, Stored: 4}, nil); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("wrong length: %v", err)
	}
	if err := w.Begin(gear.StreamFile{Size: 5, Encoding: gear.Plain, Stored: 5}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.End(); err == nil {
		t.Error("ended before a content was whole")
	}
	if _, err := w.Write(make([]byte, 6)); err == nil {
		t.Error("took too many bytes")
	}
}

func TestFrameBounds(t *testing.T) {
	d, err := gear.NewFrameDecoder(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := frame(t, make([]byte, 64<<20), nil)
	for _, size := range []int{0, 10, gear.LargeFile, gear.LargeFile + 1, 64 << 20, -1} {
		if _, err := d.Decode(nil, bomb, size); !errors.Is(err, gear.ErrFormat) {
			t.Errorf("64 MiB as %d bytes: %v", size, err)
		}
	}
	if _, err := gear.NewFrameDecoder(frame(t, make([]byte, 2<<20), nil)); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("dictionary of 2 MiB: %v", err)
	}
	if _, err := gear.NewFrameDecoder([]byte("none")); !errors.Is(err, gear.ErrFormat) {
		t.Errorf("no dictionary: %v", err)
	}
}

func FuzzStream(f *testing.F) {
	var out bytes.Buffer
	w := gear.NewStreamWriter(&out)
	small := letters(3, 500)
	dict := dictOf(f, letters(3, 8000))
	z := frame(f, small, dict)
	if err := w.Begin(gear.StreamFile{Name: sha256.Sum256(small), Size: 500, Encoding: gear.ZstdDict, Stored: int64(len(z)), Dict: gear.Name{9}}, frame(f, dict, nil)); err != nil {
		f.Fatal(err)
	}
	if _, err := w.Write(z); err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(w.Missing(gear.Name{1}), w.Failure(gear.Name{2}, "x"), w.End()); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	// A large content that ends after its first part.
	head := append(bytes.Clone(out.Bytes()[:8]), 2, 1, 0)
	head = append(head, make([]byte, 32)...)
	head = binary.LittleEndian.AppendUint64(head, 1<<40)
	head = append(head, byte(gear.Chunked), 0)
	f.Add(binary.LittleEndian.AppendUint64(head, 1<<40))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := gear.NewStreamReader(bytes.NewReader(b))
		for {
			it, err := r.Next()
			if err != nil {
				return
			}
			if it.Missing || it.Failure != "" || it.Chunks != nil {
				continue
			}
			if sha256.Sum256(it.Bytes()) != it.Name || int64(len(it.Bytes())) != it.Size {
				t.Fatalf("content %x was not verified", it.Name)
			}
		}
	})
}
