package agent_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// ofProfile reports whether a request is for the files of a profile.
func ofProfile(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/_slipway/gear/fetch") && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
}

// sendPack answers a request for the files of a profile, and returns the names of those that were
// sent. before, if it is not nil, is called with the number of bytes before each piece is sent.
func sendPack(w http.ResponseWriter, r *http.Request, pass http.Handler, before func(sent int)) (names []string) {
	c := &copying{ResponseWriter: w, before: before}
	defer func() { names = streamNames(c.sent.Bytes()) }()
	pass.ServeHTTP(c, r)
	return nil
}

// streamNames returns the names of the files that a stream has, also of those at its end that
// were cut off. The format is in docs/formats/gear-stream.md.
func streamNames(b []byte) (names []string) {
	const magic, entry, number = 8, 50, 8
	// cut takes n bytes. Behind the end of the stream there are none.
	cut := func(n int) (part []byte) {
		n = min(n, len(b))
		part, b = b[:n], b[n:]
		return part
	}
	cut(magic)
	for {
		kind := cut(1)
		if len(kind) == 0 {
			return names
		}
		switch kind[0] {
		case 1: // a dictionary
			head := cut(5)
			if len(head) < 5 {
				return names
			}
			cut(int(binary.LittleEndian.Uint32(head[1:])))
		case 2: // contents: their entries, then their bytes
			head := cut(2)
			if len(head) < 2 {
				return names
			}
			stored := 0
			for range binary.LittleEndian.Uint16(head) {
				e := cut(entry)
				if len(e) < entry {
					return names
				}
				names = append(names, string(e[:32]))
				stored += int(binary.LittleEndian.Uint64(e[entry-number:]))
			}
			cut(stored)
		default: // missing, a failure, or the end
			return names
		}
	}
}

// copying keeps a copy of what is sent.
type copying struct {
	http.ResponseWriter
	sent   bytes.Buffer
	before func(sent int)
}

func (c *copying) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if c.before != nil {
			c.before(c.sent.Len())
		}
		m, err := c.ResponseWriter.Write(p[n:min(n+4096, len(p))])
		c.sent.Write(p[n : n+m])
		if n += m; err != nil {
			return n, err
		}
		if c.before != nil {
			_ = http.NewResponseController(c.ResponseWriter).Flush()
		}
	}
	return n, nil
}

// Unwrap lets an [http.ResponseController] flush.
func (c *copying) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// smallFiles returns an image like that of image, whose files are all small.
func smallFiles(t testing.TB, files int) *imagetest.Bundle {
	t.Helper()
	program, err := checkerBuilt()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.NewChaCha8([32]byte{9})
	layers := []imagetest.Layer{
		new(imagetest.Archive).Dir("./").Dir("bin/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/check", Mode: 0o755}, program).Layer(),
	}
	for part := range 2 {
		a := new(imagetest.Archive).Dir("files/").Dir(fmt.Sprintf("files/%d/", part))
		for i := range files / 2 {
			name, data := content(rng, 2000+i%50*400)
			a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%d/%s", part, name)}, data)
		}
		layers = append(layers, a.Layer())
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/check"}, "Env": []string{"PATH=/bin"}}, layers)
}

// TestPacks starts containers on empty nodes, where the files of the profile are requested before
// they are wanted. That request goes well or badly. All bytes of files that come from the registry
// must be hardly more than what a node needs that does without, and the container must not start
// later for it than a request deserves.
func TestPacks(t *testing.T) {
	const files = 400
	s := slipway.Start(t, t.TempDir(), nil)
	ref := push(t, s, "team/app:v1", smallFiles(t, files))
	runc := tool.Built(t, "runc")
	node.Start(t, quiet).Run("profile", "record", "--runtime", runc, ref, "--", "one")
	g := behind(t, s)
	start := func(t *testing.T, settings string, containers int, pack fault) (got, packs int64, names []string, took time.Duration) {
		var came, n atomic.Int64
		var mu sync.Mutex
		g.set(filesOnly(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			w = &counting{w, &came}
			if ofProfile(r) {
				n.Add(1)
				pack(w, r, pass)
				return
			}
			if r.Method == http.MethodPost {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				mu.Lock()
				for i := 0; i+32 <= len(b); i += 32 {
					names = append(names, string(b[i:i+32]))
				}
				mu.Unlock()
				r.Body = io.NopCloser(bytes.NewReader(b))
			}
			pass.ServeHTTP(w, r)
		}))
		a := node.Start(t, settings)
		began := time.Now()
		var work sync.WaitGroup
		for range containers {
			work.Go(func() {
				if out, err := a.Try("run", "--runtime", runc, g.ref(ref), "--", "one"); err != nil || out != good(files/2)+"\n" {
					t.Errorf("a container prints %q, error %v", out, err)
				}
			})
		}
		work.Wait()
		took = time.Since(began)
		a.Stop()
		return came.Load(), n.Load(), names, took
	}
	need, _, all, without := start(t, quiet, 1, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) })
	t.Logf("without a pack: %d bytes, %d files, %v", need, len(all), without)
	if len(all) != files/2+1 {
		t.Fatalf("without a pack %d files are requested, want %d", len(all), files/2+1)
	}
	whole := func(w http.ResponseWriter, r *http.Request, pass http.Handler) { sendPack(w, r, pass, nil) }
	after := func(share float64, do func(r *http.Request)) fault {
		return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
			sendPack(w, r, pass, func(sent int) {
				if float64(sent) > share*float64(need) {
					do(r)
				}
			})
		}
	}
	die := func(*http.Request) { panic(http.ErrAbortHandler) }
	stall := func(r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) }
	for _, c := range []struct {
		name       string
		settings   string
		containers int
		pack       fault
		packs      int64
		beside     bool          // other requests for files are needed
		late       time.Duration // how much longer it may take
	}{
		{name: "whole", containers: 1, pack: whole, packs: 1},
		{name: "many starts", containers: 50, pack: whole, packs: 1},
		{name: "the registry dies", containers: 1, pack: after(0.7, die), packs: 1, beside: true},
		{name: "many starts, and the registry dies", containers: 20, pack: after(0.7, die), packs: 1, beside: true},
		{name: "stalls", containers: 1, pack: after(0.7, stall), packs: 1, beside: true, late: 2 * time.Second},
		{name: "never answers", containers: 1, packs: 1, beside: true, late: time.Second,
			pack: func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }},
		{name: "peers", settings: "peers: {listen: '127.0.0.1:0'}\n", containers: 1, pack: whole, beside: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, packs, names, took := start(t, quiet+c.settings, c.containers, c.pack)
			t.Logf("%d bytes in all, %.4f of the need; %d files beside the pack; %v", got, float64(got)/float64(need), len(names), took)
			if packs != c.packs {
				t.Errorf("%d packs were requested, want %d", packs, c.packs)
			}
			if float64(got) > 1.02*float64(need) {
				t.Errorf("%d bytes came, and %d without a pack", got, need)
			}
			if (len(names) > 0) != c.beside {
				t.Errorf("%d files were requested beside the pack", len(names))
			}
			if most := 2*without + time.Second + c.late; c.containers == 1 && took > most {
				t.Errorf("it took %v, want %v at most", took, most)
			}
		})
	}
}
