package agent_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// checkerSource is the program of the test images. The SHA-256 of a file below /files is its name.
// The program opens all of them, and reports how many could not be opened or read and how many had
// other content. With arguments it does something else first.
const checkerSource = `package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	top := "/files"
	for _, arg := range os.Args[1:] {
		switch {
		case strings.HasPrefix(arg, "write="):
			if err := os.WriteFile("/written", []byte(arg[6:]), 0o644); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		case arg == "written":
			b, err := os.ReadFile("/written")
			fmt.Println(string(b), err)
			return
		case arg == "one":
			top = "/files/0"
		case arg == "sleep":
			fmt.Println("sleeping")
			time.Sleep(time.Hour)
		}
	}
	files, failed, wrong := 0, 0, 0
	walk(top, func(path, name string) {
		files++
		b, err := os.ReadFile(path)
		sum := sha256.Sum256(b)
		switch {
		case err != nil:
			failed++
			fmt.Println(err)
		case hex.EncodeToString(sum[:]) != name:
			wrong++
		}
	})
	fmt.Printf("files=%d failed=%d wrong=%d\n", files, failed, wrong)
}

func walk(dir string, do func(path, name string)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, e := range entries {
		if e.IsDir() {
			walk(dir+"/"+e.Name(), do)
		} else {
			do(dir+"/"+e.Name(), e.Name())
		}
	}
}
`

var checkerBuilt = sync.OnceValues(func() ([]byte, error) {
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

// content returns a file of the given size; no two are alike.
func content(rng *rand.ChaCha8, size int) (name string, data []byte) {
	data = make([]byte, size)
	_, _ = rng.Read(data)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), data
}

// image returns an image of three layers: the program, and files in two directories. Images
// that differ only in env have the same layers.
func image(t testing.TB, seed byte, files int, env ...string) *imagetest.Bundle {
	t.Helper()
	program, err := checkerBuilt()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.NewChaCha8([32]byte{seed})
	size := rand.New(rand.NewPCG(1, uint64(seed)))
	layers := []imagetest.Layer{
		new(imagetest.Archive).Dir("./").Dir("bin/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/check", Mode: 0o755}, program).Layer(),
	}
	for part := range 2 {
		a := new(imagetest.Archive).Dir("files/").Dir(fmt.Sprintf("files/%d/", part))
		for i := range files / 2 {
			n := size.IntN(8 << 10)
			if i == 0 {
				n = 3 << 20 // stored in chunks
			}
			name, data := content(rng, n+1)
			a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%d/%s", part, name)}, data)
		}
		layers = append(layers, a.Layer())
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/check"}, "Env": append(env, "PATH=/bin")}, layers)
}

// good returns what the program prints if every file is as it should be.
func good(files int) string { return fmt.Sprintf("files=%d failed=0 wrong=0", files) }

// push pushes an image under a name, and waits until it is converted.
func push(t testing.TB, s *slipway.Server, name string, b *imagetest.Bundle) (ref string) {
	t.Helper()
	repo, tag, _ := strings.Cut(name, ":")
	if err := b.Push(t.Context(), s.Client, repo, tag); err != nil {
		t.Fatal(err)
	}
	s.Converted()
	return s.Addr + "/" + name
}

// gate is an address in front of a registry where faults can be added.
type gate struct {
	addr string
	// how answers Gear requests. If it is nil, the registry answers them.
	how atomic.Pointer[fault]
}

// fault answers a Gear request; pass asks the registry.
type fault func(w http.ResponseWriter, r *http.Request, pass http.Handler)

// filesOnly applies a fault to requests for files only.
func filesOnly(f fault) fault {
	return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/_slipway/gear/fetch") || strings.Contains(r.URL.Path, "/_slipway/gear/files/") {
			f(w, r, pass)
			return
		}
		pass.ServeHTTP(w, r)
	}
}

// behind starts a gate in front of a registry.
func behind(t testing.TB, s *slipway.Server) *gate {
	t.Helper()
	target, err := url.Parse("http://" + s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.FlushInterval = -1
	pass.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) { w.WriteHeader(http.StatusBadGateway) }
	g := &gate{addr: slipway.FreeAddr(t)}
	srv := &http.Server{Addr: g.addr, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := g.how.Load()
		if f == nil || !strings.Contains(r.URL.Path, "/_slipway/gear") {
			pass.ServeHTTP(w, r)
			return
		}
		(*f)(w, r, pass)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ListenAndServe() }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return g
}

// ref returns an image's name through the gate.
func (g *gate) ref(ref string) string {
	_, rest, _ := strings.Cut(ref, "/")
	return g.addr + "/" + rest
}

func (g *gate) set(f fault) {
	if f == nil {
		g.how.Store(nil)
		return
	}
	g.how.Store(&f)
}

// check reads every file below dir/files, as the program does.
func check(t testing.TB, dir string) (files, failed, wrong int) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "files"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		if err != nil {
			failed++
			return nil
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != d.Name() {
			wrong++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, failed, wrong
}
