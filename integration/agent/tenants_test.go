package agent_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
)

// oneFile returns an image with two files.
func oneFile(name string, body, other []byte) *imagetest.Bundle {
	a := new(imagetest.Archive).Dir("./").Dir("etc/").
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/" + name, Mode: 0o644}, body).
		Add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/other", Mode: 0o644}, other)
	return imagetest.Compose(runtime.GOARCH, map[string]any{}, []imagetest.Layer{a.Layer()})
}

// rewritten is a registry that changes the indexes that it serves, and their names accordingly.
func rewritten(pairs ...[]byte) fault {
	return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if !strings.Contains(r.URL.Path, "/_slipway/gear/layers/") {
			pass.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		pass.ServeHTTP(rec, r)
		body := rec.Body.Bytes()
		if rec.Code == http.StatusOK {
			for i := 0; i < len(pairs); i += 2 {
				body = bytes.ReplaceAll(body, pairs[i], pairs[i+1])
			}
			sum := sha256.Sum256(body)
			name := "sha256:" + hex.EncodeToString(sum[:])
			for _, h := range []string{"Slipway-Gear-Name", "Docker-Content-Digest"} {
				if rec.Header().Get(h) != "" {
					rec.Header().Set(h, name)
				}
			}
			rec.Header().Set("Etag", `"`+name+`"`)
		}
		for h, v := range rec.Header() {
			w.Header()[h] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(body)
	}
}

func digestOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

// TestTwoRegistries mounts images of two registries on one node. The second registry's indexes name
// digests of the first one's files, small and large, both held and not held by the node. It also
// serves another tree for a layer that both have. None of its images may show a byte of the first
// registry's, and the first registry's images must show their own content. If both are configured
// as one domain, they share what was fetched.
func TestTwoRegistries(t *testing.T) {
	first, second := slipway.Start(t, t.TempDir(), nil), slipway.Start(t, t.TempDir(), nil)
	evil := behind(t, second)
	for what, size := range map[string]int{"small": 3000, "large": 5 << 20} {
		secret, decoy := bytes.Repeat([]byte("top secret "), size/11), bytes.Repeat([]byte("harmless.. "), size/11)
		copy(secret, what)
		image := "team/" + what + ":v1"
		honest := push(t, first, image, oneFile("secret", secret, []byte("the first's")))
		thief := push(t, second, image, oneFile("steal", decoy, []byte("the second's")))
		common := push(t, first, "team/common-"+what+":v1", oneFile("common", decoy, []byte("common")))
		push(t, second, "team/common-"+what+":v1", oneFile("common", decoy, []byte("common")))
		evil.set(rewritten(digestOf(decoy), digestOf(secret)))
		want := func(dir, name string, body []byte) {
			t.Helper()
			got, err := os.ReadFile(filepath.Join(dir, "etc", name))
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: %s has %d bytes, error %v", what, name, len(got), err)
			}
		}
		refused := func(dir, name string) {
			t.Helper()
			if got, err := os.ReadFile(filepath.Join(dir, "etc", name)); err == nil {
				t.Errorf("%s: the thief reads %.20q", what, got)
			}
			want(dir, "other", []byte("the second's"))
		}
		for _, before := range []bool{false, true} {
			a := node.Start(t, quiet)
			if before {
				dir := a.Mount(honest)
				want(dir, "secret", secret)
			}
			stolen := a.Mount(evil.ref(thief))
			refused(stolen, "steal")
			// Both have the same layer, but what the second says of it must not affect the first.
			a.Mount(evil.ref(common))
			want(a.Mount(common), "common", decoy)
			want(a.Mount(honest), "secret", secret)
			refused(stolen, "steal")
			if !a.KillWorker() {
				t.Fatal("the agent has no worker")
			}
			refused(stolen, "steal")
		}
		evil.set(nil)
		a := node.Start(t, quiet+"registries: [{host: \""+first.Addr+"\", urls: [\"http://"+first.Addr+"\"], domain: ours}, {host: \""+
			evil.addr+"\", urls: [\"http://"+evil.addr+"\"], domain: ours}]\n")
		want(a.Mount(common), "common", decoy)
		evil.set(filesOnly(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) }))
		want(a.Mount(evil.ref(thief)), "steal", decoy)
	}
}

// passedAs is a registry that has the files of the registry behind it under other names.
func passedAs(alias, name string) fault {
	return func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if strings.Contains(r.URL.Path, alias) {
			r = r.Clone(r.Context())
			r.URL.Path = strings.ReplaceAll(r.URL.Path, alias, name)
			rec := httptest.NewRecorder()
			pass.ServeHTTP(rec, r)
			for h, v := range rec.Header() {
				for _, s := range v {
					w.Header().Add(h, strings.ReplaceAll(s, name, alias))
				}
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(rec.Body.Bytes())
			return
		}
		pass.ServeHTTP(w, r)
	}
}

// TestLiarOfOneDomain has two registries of one domain. One of them sends other chunks for a large
// file of the other registry, and its index names the file with these chunks. A container reads
// them. The other's image must show its own content all the same, and must do so at once, whether
// the liar's container still has the file open or not.
func TestLiarOfOneDomain(t *testing.T) {
	first, second := slipway.Start(t, t.TempDir(), nil), slipway.Start(t, t.TempDir(), nil)
	evil := behind(t, second)
	const size = 20 << 20 // opened in ranges
	truth, lie := bytes.Repeat([]byte("the truth! "), size/11), bytes.Repeat([]byte("but a lie. "), size/11)
	honest := push(t, first, "team/honest:v1", oneFile("file", truth, []byte("the first's")))
	liar := evil.ref(push(t, second, "team/liar:v1", oneFile("file", lie, []byte("the second's"))))
	indexes, files := rewritten(digestOf(lie), digestOf(truth)), passedAs(hex.EncodeToString(digestOf(truth)), hex.EncodeToString(digestOf(lie)))
	evil.set(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		indexes(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { files(w, r, pass) }))
	})
	for _, open := range []bool{true, false} {
		a := node.Start(t, quiet+"registries: [{host: \""+first.Addr+"\", urls: [\"http://"+first.Addr+"\"], domain: ours}, {host: \""+
			evil.addr+"\", urls: [\"http://"+evil.addr+"\"], domain: ours}]\n")
		f, err := os.Open(filepath.Join(a.Mount(liar), "etc/file"))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 6<<20)
		if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, lie[:len(got)]) {
			t.Fatalf("the liar's own container reads %.11q, error %v", got, err)
		}
		if !open {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			got, err := os.ReadFile(filepath.Join(a.Mount(honest), "etc/file"))
			if err != nil || !bytes.Equal(got, truth) {
				t.Errorf("open %v: the other's file has %d bytes that begin with %.11q, error %v", open, len(got), got, err)
			}
		}
		if !open {
			continue
		}
		if n, err := f.ReadAt(got, 0); err == nil && !bytes.Equal(got, truth[:len(got)]) {
			t.Errorf("the liar's container goes on with the lie: %d bytes", n)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
