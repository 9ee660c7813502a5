package gear_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// everything returns an index with one of each thing that an index can hold.
func everything() *gear.Index {
	large := gear.File{Name: gear.Name{1}, Size: gear.LargeFile + 1, Chunks: []gear.Name{{2}, {3}, {4}, {5}, {6}}}
	other := gear.File{Name: gear.Name{7}, Size: 2 * gear.LargeFile}
	other.Chunks = make([]gear.Name, 8)
	entry := func(e rootfs.Entry, file int32) gear.Entry { return gear.Entry{Entry: e, File: file} }
	return &gear.Index{
		Entries: []gear.Entry{
			entry(rootfs.Entry{Path: ".", Type: rootfs.Dir, Mode: 0o1777, Sec: math.MinInt64, Nsec: 999_999_999}, -1),
			entry(rootfs.Entry{Path: ".", Type: rootfs.Opaque}, -1),
			entry(rootfs.Entry{Path: "-", Type: rootfs.File, Mode: 0o4755, UID: math.MaxUint32, GID: 1 << 31, Sec: math.MaxInt64, Size: large.Size,
				Xattrs: []rootfs.Xattr{{Name: "security.capability", Value: "\x01\x00\xff"}, {Name: "user.empty"}}}, 0),
			entry(rootfs.Entry{Path: "a", Type: rootfs.Dir, Sec: -1}, -1),
			entry(rootfs.Entry{Path: "a", Type: rootfs.Opaque}, -1),
			entry(rootfs.Entry{Path: "a/again", Type: rootfs.File, Size: large.Size}, 0),
			entry(rootfs.Entry{Path: "a/\xff\xfe\n", Type: rootfs.File}, 1),
			entry(rootfs.Entry{Path: "a-", Type: rootfs.Symlink, Link: "\xff/../x", Sec: -1 << 40}, -1),
			entry(rootfs.Entry{Path: "b/implied", Type: rootfs.CharDevice, Major: math.MaxUint32, Minor: 1}, -1),
			entry(rootfs.Entry{Path: "c", Type: rootfs.BlockDevice, Minor: math.MaxUint32}, -1),
			entry(rootfs.Entry{Path: "d", Type: rootfs.Fifo}, -1),
			entry(rootfs.Entry{Path: "e", Type: rootfs.Socket}, -1),
			entry(rootfs.Entry{Path: "f", Type: rootfs.HardLink, Link: "-"}, 0),
			entry(rootfs.Entry{Path: "g", Type: rootfs.HardLink, Link: "below/x"}, -1),
			entry(rootfs.Entry{Path: "h", Type: rootfs.HardLink, Link: "a-"}, -1),
			entry(rootfs.Entry{Path: "i", Type: rootfs.Whiteout}, -1),
			entry(rootfs.Entry{Path: "j", Type: rootfs.HardLink, Link: "i"}, -1),
			entry(rootfs.Entry{Path: "k", Type: rootfs.Opaque}, -1),
			entry(rootfs.Entry{Path: "k/x", Type: rootfs.File, Size: other.Size}, 2),
		},
		Files: []gear.File{large, gear.Empty(), other},
	}
}

func TestIndexRoundTrip(t *testing.T) {
	recode(t, everything())
	recode(t, &gear.Index{})
}

// encoded returns the bytes of an index.
func encoded(t testing.TB, x *gear.Index) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := x.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestIndexBytes pins the format to the bytes that docs/formats/gear-index.md explains.
func TestIndexBytes(t *testing.T) {
	x := &gear.Index{
		Entries: []gear.Entry{
			{Entry: rootfs.Entry{Path: "bin", Type: rootfs.Dir, Mode: 0o755, Sec: 1}, File: -1},
			{Entry: rootfs.Entry{Path: "bin/sh", Type: rootfs.File, Mode: 0o755, Sec: 1, Size: 300}, File: 0},
		},
		Files: []gear.File{{Name: sha256.Sum256([]byte("x")), Size: 300}},
	}
	head := []byte("slipgear\x01\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00")
	columns := []string{
		"\x00\x03", "bin\x00/sh\x00", "\x01\xed\x03\x00\x00\x00\x02\xed\x03\x00\x00\x00", "\x00\x01",
		"\x02\x00", "\x00\x00", "", "", "\x00", "\xac\x02", "",
	}
	for _, c := range columns {
		head = binary.LittleEndian.AppendUint32(head, uint32(len(c)))
		head = binary.LittleEndian.AppendUint32(head, uint32(len(c)))
	}
	want := string(head) + strings.Join(columns, "") + string(x.Files[0].Name[:])
	if diff := cmp.Diff(want, string(encoded(t, x))); diff != "" {
		t.Errorf("bytes (-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := encoded(t, everything())
	change := func(at int, b ...byte) []byte {
		out := slices.Clone(good)
		copy(out[at:], b)
		return out
	}
	for name, test := range map[string]struct {
		data   []byte
		limits gear.Limits
		want   error
	}{
		"empty":              {nil, gear.Limits{}, gear.ErrInvalid},
		"other magic":        {change(0, 'x'), gear.Limits{}, gear.ErrInvalid},
		"next version":       {change(8, 2), gear.Limits{}, gear.ErrVersion},
		"next version short": {change(8, 2)[:12], gear.Limits{}, gear.ErrVersion},
		"more bytes":         {append(slices.Clone(good), 0), gear.Limits{}, gear.ErrInvalid},
		"too many entries":   {good, gear.Limits{Entries: 18}, gear.ErrTooLarge},
		"too much memory":    {good, gear.Limits{Bytes: 3_000}, gear.ErrTooLarge},
		"more entries":       {change(12, 20), gear.Limits{}, gear.ErrInvalid},
		"fewer entries":      {change(12, 18), gear.Limits{}, gear.ErrInvalid},
		"huge entries":       {change(12, 0xff, 0xff, 0xff, 0xff), gear.Limits{}, gear.ErrTooLarge},
		"more files":         {change(16, 4), gear.Limits{}, gear.ErrInvalid},
		"more files still":   {change(16, 20), gear.Limits{}, gear.ErrInvalid},
		"longer paths":       {change(20, 0xff), gear.Limits{}, gear.ErrInvalid},
		"huge paths":         {change(27, 0xff), gear.Limits{}, gear.ErrTooLarge},
		"large paths":        {change(24, 0xff), gear.Limits{}, gear.ErrTooLarge},
		"huge column":        {change(28, 0xff, 0xff, 0xff, 0xff), gear.Limits{}, gear.ErrTooLarge},
		"stored longer":      {change(32, 0xff), gear.Limits{}, gear.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := gear.Decode(bytes.NewReader(test.data), &test.limits)
			if !errors.Is(err, test.want) || x != nil {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	for n := range good[:300] {
		if _, err := gear.Decode(bytes.NewReader(good[:n]), nil); err == nil {
			t.Errorf("the first %d bytes were taken for an index", n)
		}
	}
	if _, err := gear.Decode(bytes.NewReader(good[:len(good)-1]), nil); !errors.Is(err, gear.ErrInvalid) {
		t.Errorf("without its last byte: %v", err)
	}
}

// TestNotCanonical breaks each rule of the canonical form once.
func TestNotCanonical(t *testing.T) {
	for name, spoil := range map[string]func(*gear.Index){
		"order":                 func(x *gear.Index) { x.Entries[2], x.Entries[7] = x.Entries[7], x.Entries[2] },
		"twice":                 func(x *gear.Index) { x.Entries[10].Path = "c" },
		"path":                  func(x *gear.Index) { x.Entries[10].Path = "c/../d" },
		"NUL":                   func(x *gear.Index) { x.Entries[10].Path = "c\x00" },
		"long path":             func(x *gear.Index) { x.Entries[10].Path = "c" + strings.Repeat("/c", 2048) },
		"deep path":             func(x *gear.Index) { x.Entries[10].Path = "c-" + strings.Repeat("/c", 2048) },
		"below a file":          func(x *gear.Index) { x.Entries[10].Path = "c/x" },
		"root no directory":     func(x *gear.Index) { x.Entries[0].Type = rootfs.Fifo },
		"type":                  func(x *gear.Index) { x.Entries[11].Type = 99 },
		"mode":                  func(x *gear.Index) { x.Entries[11].Mode = 0o10000 },
		"nanoseconds":           func(x *gear.Index) { x.Entries[11].Nsec = 1e9 },
		"size":                  func(x *gear.Index) { x.Entries[5].Size = 1 },
		"size of a fifo":        func(x *gear.Index) { x.Entries[10].Size = 1 },
		"link of a fifo":        func(x *gear.Index) { x.Entries[10].Link = "x" },
		"device of a fifo":      func(x *gear.Index) { x.Entries[10].Minor = 1 },
		"symlink without":       func(x *gear.Index) { x.Entries[7].Link = "" },
		"metadata of a link":    func(x *gear.Index) { x.Entries[12].Mode = 1 },
		"metadata of whiteout":  func(x *gear.Index) { x.Entries[15].Sec = 1 },
		"xattrs out of order":   func(x *gear.Index) { slices.Reverse(x.Entries[2].Xattrs) },
		"xattr without name":    func(x *gear.Index) { x.Entries[2].Xattrs[0].Name = "" },
		"file out of range":     func(x *gear.Index) { x.Entries[5].File = 3 },
		"file negative":         func(x *gear.Index) { x.Entries[5].File = -1 },
		"file of a directory":   func(x *gear.Index) { x.Entries[3].File = 0 },
		"file of a link":        func(x *gear.Index) { x.Entries[12].File = -1 },
		"link to a link":        func(x *gear.Index) { x.Entries[14].Link = "f" },
		"link to what follows":  func(x *gear.Index) { x.Entries[12].Link = "k/x" },
		"link to itself":        func(x *gear.Index) { x.Entries[13].Link = "g" },
		"file never mentioned":  func(x *gear.Index) { x.Files = append(x.Files, x.Files[0]) },
		"chunks":                func(x *gear.Index) { x.Files[0].Chunks = x.Files[0].Chunks[1:] },
		"name of the empty one": func(x *gear.Index) { x.Files[1].Name[0]++ },
	} {
		t.Run(name, func(t *testing.T) {
			x := everything()
			spoil(x)
			if err := x.Encode(&bytes.Buffer{}); !errors.Is(err, gear.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestLargeIndex makes, encodes, decodes and flattens an index of 399,000 files, and
// measures the memory that flattening takes.
func TestLargeIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const n = 399_000
	b := gear.NewBuilder(nil)
	for i := range n {
		var f gear.File
		binary.BigEndian.PutUint64(f.Name[8:], uint64(i+1)*0x9e3779b97f4a7c15)
		f.Size = int64(i%5000) + 1
		e := rootfs.Entry{Path: fmt.Sprintf("usr/lib/package-%03d/module-%02d/file%07d", i/5000, i/100%50, i), Type: rootfs.File, Size: f.Size, Sec: int64(i)}
		if err := b.Add(e, f); err != nil {
			t.Fatal(err)
		}
	}
	base, err := b.Index()
	if err != nil {
		t.Fatal(err)
	}
	data := encoded(t, base)
	if base, err = gear.Decode(bytes.NewReader(data), nil); err != nil {
		t.Fatal(err)
	}
	upper := &gear.Index{Entries: []gear.Entry{{Entry: rootfs.Entry{Path: "usr/lib/package-000", Type: rootfs.Whiteout}, File: -1}}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := time.Now()
	flat, err := gear.Flatten(base, upper)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	if want := n - 5000 + n/100 - 50 + n/5000 + 2; len(flat.Entries) < n-5000 || len(flat.Entries) > want+10 {
		t.Errorf("%d entries, want about %d", len(flat.Entries), want)
	}
	grown := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d bytes encoded; flattened in %v with %d MiB allocated, heap %d MiB", len(data), took, grown>>20, after.HeapInuse>>20)
	if limit := uint64(n * 420); grown > limit {
		t.Errorf("flattening allocated %d bytes, the limit is %d", grown, limit)
	}
	runtime.KeepAlive(base)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(nil))
	for _, x := range []*gear.Index{everything(), {}} {
		var buf bytes.Buffer
		if err := x.Encode(&buf); err != nil {
			f.Fatal(err)
		}
		f.Add(buf.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := gear.Decode(bytes.NewReader(data), &gear.Limits{Entries: 1000, Bytes: 1 << 20})
		if err != nil {
			if !errors.Is(err, gear.ErrInvalid) && !errors.Is(err, gear.ErrVersion) && !errors.Is(err, gear.ErrTooLarge) {
				t.Errorf("the error is of no kind: %v", err)
			}
			return
		}
		recode(t, x)
		// Two equal layers can only conflict in links to lower layers.
		if _, err := gear.Flatten(x, x); err != nil && !errors.Is(err, gear.ErrConflict) && !errors.Is(err, gear.ErrTooLarge) {
			t.Error(err)
		}
	})
}
