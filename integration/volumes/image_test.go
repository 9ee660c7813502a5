package volumes_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
)

// checkerSource is the program of the test images. The SHA-256 of a file below /files is its name.
// The program reads all of them, once or for some time, and reports how many could not be read and
// how many had other content. With write it first writes its own files beside them, and checks
// those too.
const checkerSource = `package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"
)

var files, failed, wrong int

func main() {
	var until time.Time
	for _, arg := range os.Args[1:] {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "for":
			d, err := time.ParseDuration(value)
			if err != nil {
				panic(err)
			}
			until = time.Now().Add(d)
		case "write":
			write()
		case "hold":
			fmt.Println("holding")
			time.Sleep(time.Hour)
		}
	}
	for once := true; once || time.Now().Before(until); once = false {
		files = 0
		walk("/files")
	}
	fmt.Printf("files=%d failed=%d wrong=%d\n", files, failed, wrong)
}

func write() {
	r := rand.New(rand.NewSource(time.Now().UnixNano()))
	if err := os.MkdirAll("/files/own", 0o755); err != nil {
		fmt.Println(err)
		failed++
		return
	}
	for i := 0; i < 8; i++ {
		data := make([]byte, 1+r.Intn(300000))
		r.Read(data)
		sum := sha256.Sum256(data)
		name := "/files/own/" + hex.EncodeToString(sum[:])
		f, err := os.Create(name)
		if err == nil {
			_, err = f.Write(data)
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			fmt.Println(err)
			failed++
			return
		}
		f.Close()
	}
}

func walk(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		fmt.Println(err)
		failed++
		return
	}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		if e.IsDir() {
			walk(name)
			continue
		}
		files++
		b, err := os.ReadFile(name)
		sum := sha256.Sum256(b)
		switch {
		case err != nil:
			failed++
			fmt.Println(err)
		case hex.EncodeToString(sum[:]) != e.Name():
			wrong++
			fmt.Println("wrong", name)
		}
	}
}
`

var checker = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "checker")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(checkerSource), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", "checker", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the test program: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "checker"))
})

// good returns what the program prints if every file is as it should be.
func good(files int) string { return fmt.Sprintf("files=%d failed=0 wrong=0", files) }

// ofImage is the number of files that every image has below /files.
const ofImage = 40

// image returns version v of a series: a layer with the program, one with files that all versions
// share, and one with the version's own files. Two series share nothing but the program.
func image(t testing.TB, series, v byte) *imagetest.Bundle {
	t.Helper()
	program, err := checker()
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/check"}, "Env": []string{"PATH=/bin"}}, []imagetest.Layer{
		new(imagetest.Archive).Dir("./").Dir("bin/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/check", Mode: 0o755}, program).Layer(),
		files("shared", [2]byte{series, 0}, 2<<20),
		files(fmt.Sprintf("v%d", v), [2]byte{series, v + 1}, 256<<10),
	})
}

// files returns a layer with half of an image's files. The first file has large bytes.
func files(dir string, seed [2]byte, large int) imagetest.Layer {
	rng := rand.NewChaCha8([32]byte{seed[0], seed[1]})
	size := rand.New(rng)
	a := new(imagetest.Archive).Dir("files/").Dir("files/" + dir + "/")
	for i := range ofImage / 2 {
		data := make([]byte, 1+size.IntN(32<<10))
		if i == 0 {
			data = make([]byte, large)
		}
		_, _ = rng.Read(data)
		sum := sha256.Sum256(data)
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: "files/" + dir + "/" + hex.EncodeToString(sum[:])}, data)
	}
	return a.Layer()
}

// strange returns an image of entries that are not simply files with some bytes.
func strange(t testing.TB) *imagetest.Bundle {
	t.Helper()
	at := time.Date(2001, 2, 3, 4, 5, 6, 789012345, time.UTC)
	pax := func(h tar.Header) tar.Header { h.Format = tar.FormatPAX; return h }
	attr := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m["SCHILY.xattr."+pairs[i]] = pairs[i+1]
		}
		return m
	}
	bottom := new(imagetest.Archive).Dir("./").
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o4755, Uid: 1234567, Gid: 7}, []byte("x")).
		Add(pax(tar.Header{Typeflag: tar.TypeReg, Name: "old", ModTime: at}), []byte("old")).
		Add(pax(tar.Header{Typeflag: tar.TypeReg, Name: "far", ModTime: time.Date(2200, 1, 1, 0, 0, 0, 1, time.UTC)}), nil).
		Add(pax(tar.Header{Typeflag: tar.TypeReg, Name: "caps", PAXRecords: attr("security.capability", "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")}), []byte("caps")).
		Add(pax(tar.Header{Typeflag: tar.TypeReg, Name: "attrs", PAXRecords: attr("user.one", "1", "user.two", strings.Repeat("2", 1500), "user.three", "\x00")}), nil).
		Add(tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, nil).
		Add(tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3, Mode: 0o666}, nil).
		Add(tar.Header{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 259, Devminor: 70000}, nil).
		File("first", "linked").Hardlink("second", "first").
		Symlink("short", "first").Symlink("long", strings.Repeat("a/", 1000)+"end").
		Dir("hidden/").File("hidden/a", "a").Dir("opaque/").File("opaque/b", "b").File("gone", "gone").
		File(strings.Repeat("n", 255), "a long name").File("\xff\xfe", "no text")
	deep := ""
	for range 60 {
		deep += "d/"
		bottom.Dir(deep)
	}
	bottom.Dir("many/")
	for i := range 1500 {
		bottom.File(fmt.Sprintf("many/entry-number-%d", i), fmt.Sprint(i))
	}
	sparse := make([]byte, 3<<20)
	copy(sparse[1<<20:], "in the middle of nothing")
	top := new(imagetest.Archive).Dir("./").
		File(".wh.gone", "").Dir("opaque/").File("opaque/.wh..wh..opq", "").File("opaque/c", "c").
		Dir("hidden/").File("hidden/.wh.a", "").
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "sparse"}, sparse).
		File("old", strings.Repeat("new and longer ", 2000)).
		Add(tar.Header{Typeflag: tar.TypeDir, Name: "many/", Mode: 0o1777, Uid: 5}, nil)
	for i := range 200 {
		top.File(fmt.Sprintf("many/.wh.entry-number-%d", 7*i), "")
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{}, []imagetest.Layer{bottom.Layer(), top.Layer()}, imagetest.Gzip, imagetest.ZstdFrames)
}
