package names

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"testing"
	"testing/iotest"

	"example.org/slipway/oci"
)

// wantOCI checks that an error is one for clients.
func wantOCI(t *testing.T, err error) {
	t.Helper()
	var e *oci.Error
	if !errors.As(err, &e) || e.HTTPStatus() >= 500 {
		t.Errorf("the client's fault is told as %v", err)
	}
}

// maxNames is how many names the largest list may have.
const maxNames = 100_000

func FuzzBinaryNames(f *testing.F) {
	f.Add([]byte(nil), int64(0))
	f.Add(make([]byte, 32), int64(-1))
	f.Add(make([]byte, 33), int64(33))
	f.Add(make([]byte, 96), int64(1000))
	f.Add(make([]byte, 320), int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		const most = 5
		names, err := readBinary(iotest.HalfReader(bytes.NewReader(b)), size, most, new(buffer))
		if err != nil {
			wantOCI(t, err)
			if size < 0 && len(b)%32 == 0 && len(b) <= most*32 {
				t.Errorf("%d bytes: %v", len(b), err)
			}
			return
		}
		if len(names) > most {
			t.Errorf("got %d names", len(names))
		}
		var back []byte
		for _, n := range names {
			back = append(back, n[:]...)
		}
		if !bytes.Equal(back, b) {
			t.Errorf("got %x of %x", back, b)
		}
	})
}

var plainName = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func FuzzJSONNames(f *testing.F) {
	const one = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, s := range []string{`{"names":["` + one + `" , "` + one + `"]}`, `{"profile":"` + one + `"}`, `{"names":[]}`, `{"names":["x"]}`, `{"names":[[]]}`,
		`{"names":["\u0073ha256:"]}`, `{"names":null}`, `[]`, ``, `{"names":["` + one + `"],"names":[]}`, `{"NAMES":["` + one + `",{"x":"` + one + `"}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 3
		got, err := ReadJSON(bytes.NewReader(b), int64(len(b)), most)
		if err != nil {
			wantOCI(t, err)
			return
		}
		if len(got.Names) > most || (got.Profile != "") == (got.Names != nil) && len(got.Names) > 0 || got.Binary {
			t.Errorf("got %+v", got)
		}
		// Accepted input means the same to encoding/json.
		var want struct {
			Names   []string
			Profile string
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("taken, but %v", err)
		}
		if got.Profile != "" && string(got.Profile) != want.Profile {
			t.Errorf("got profile %q, want %q", got.Profile, want.Profile)
		}
		list := []string{}
		for _, n := range got.Names {
			list = append(list, string(Append(nil, n)))
		}
		if got.Profile == "" && !slices.Equal(list, append([]string{}, want.Names...)) {
			t.Errorf("got %q, want %q", list, want.Names)
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	f.Add("sha256:E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	f.Add("sha256:")
	f.Fuzz(func(t *testing.T, s string) {
		name, ok := Parse(s)
		if ok != plainName.MatchString(s) {
			t.Errorf("Parse(%q): %v", s, ok)
		}
		if ok && string(Append(nil, name)) != s {
			t.Errorf("Parse(%q) = %x", s, name)
		}
	})
}

// TestNamesFailInReading checks that a list which cannot be read to its end is rejected.
func TestNamesFailInReading(t *testing.T) {
	broken := io.MultiReader(bytes.NewReader(make([]byte, 64)), iotest.ErrReader(errors.New("reset")))
	if names, err := readBinary(broken, -1, 10, new(buffer)); names != nil || err == nil {
		t.Errorf("binary: got %d names, %v", len(names), err)
	} else {
		wantOCI(t, err)
	}
	_, err := ReadJSON(iotest.ErrReader(errors.New("reset")), -1, 10)
	wantOCI(t, err)
}

// TestNamesTakeMemoryAsTheyCome checks that an announced length alone takes no memory.
func TestNamesTakeMemoryAsTheyCome(t *testing.T) {
	r := &firstRead{}
	_, _ = readBinary(r, maxNames*32, maxNames, new(buffer))
	if most := perBlock * 32; r.size > most {
		t.Errorf("the first read has room for %d bytes, want at most %d", r.size, most)
	}
	buf := new(buffer)
	if n := testing.AllocsPerRun(10, func() { _, _ = readBinary(bytes.NewReader(make([]byte, 32)), 32, maxNames, buf) }); n > 5 {
		t.Errorf("a list of one name takes %v allocations", n)
	}
}

type firstRead struct{ size int }

func (r *firstRead) Read(p []byte) (int, error) {
	r.size = max(r.size, len(p))
	return 0, io.ErrClosedPipe
}
