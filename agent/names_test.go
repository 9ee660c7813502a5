package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

const someDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestParseReference(t *testing.T) {
	for in, want := range map[string]reference{
		"r.example/app":                            {"r.example", "app", "latest"},
		"r.example:5000/team/app:1.2":              {"r.example:5000", "team/app", "1.2"},
		"localhost/app:v":                          {"localhost", "app", "v"},
		"127.0.0.1:5000/app@" + someDigest:         {"127.0.0.1:5000", "app", someDigest},
		"r.example/team/app:tag@" + someDigest:     {"r.example", "team/app", someDigest},
		"[::1]:5000/app:v1":                        {"[::1]:5000", "app", "v1"},
		"docker.io/library/nginx:1.27.0-alpine3.1": {"docker.io", "library/nginx", "1.27.0-alpine3.1"},
	} {
		if got, err := parseReference(in); err != nil || got != want {
			t.Errorf("%q is %+v, error %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "app", "team/app:v1", "r.example/", "r.example/App", "r.example/a:b:c", "r.example/app@sha256:12",
		"r.example/../app", "r.example/app:", "r.example/app:ta g", "r.example/app@" + someDigest + "x", "r.example//app", "/app", "r.example/app@"} {
		if got, err := parseReference(in); err == nil {
			t.Errorf("%q is taken for %+v", in, got)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("r.example/team/app:tag@" + someDigest)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseReference(s)
		if err == nil && (r.host == "" || r.repo == "" || r.ref == "" || strings.Contains(r.repo, "..") || !strings.HasPrefix(s, r.host+"/"+r.repo)) {
			t.Errorf("%q is %+v", s, r)
		}
	})
}

func TestKeychain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.json")
	k, err := openKeychain(file)
	if err != nil {
		t.Fatal(err)
	}
	app, other := reference{host: "r.example", repo: "team/app"}, reference{host: "r.example", repo: "team/other"}
	cred := client.Credential{Username: "alice", Password: "hunter2"}
	for range 2 {
		if err := k.learn(app, cred); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, error %v, want 0600", st.Mode(), err)
	}
	again, err := openKeychain(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := again.credential(app); !ok || got != cred {
		t.Errorf("the credential was not kept (%v)", ok)
	}
	if _, ok := again.credential(other); ok {
		t.Error("another repository has a credential too")
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); err != nil || len(left) != 1 {
		t.Errorf("files left: %q, error %v", left, err)
	}
	if err := os.WriteFile(file, []byte(`{"keys":[{"repository":"hunter2`), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged, err := openKeychain(file)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a damaged file gives the error %v", err)
	}
	if err := damaged.learn(other, cred); err != nil {
		t.Errorf("behind a damaged file nothing can be kept: %v", err)
	}
}

func TestKeychainIsBounded(t *testing.T) {
	k := &keychain{file: filepath.Join(t.TempDir(), "k"), keys: map[string]client.Credential{}}
	for i := range maxKeys + 10 {
		k.put(strings.Repeat("x", i+1), client.Credential{Username: "u"})
	}
	if len(k.keys) != maxKeys || len(k.order) != maxKeys {
		t.Errorf("%d credentials in %d places are kept, want at most %d", len(k.keys), len(k.order), maxKeys)
	}
	if _, ok := k.keys["x"]; ok {
		t.Error("the oldest is still there")
	}
}

func FuzzKeychain(f *testing.F) {
	f.Add([]byte(`{"keys":[{"repository":"r/x","credential":{"Username":"u"}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		k, _ := openKeychain(file)
		if err := k.learn(reference{host: "h", repo: "r"}, client.Credential{Username: "u"}); err != nil {
			t.Error(err)
		}
	})
}

// emptyIndex returns the index of an empty layer.
func emptyIndex() *gear.Index { return &gear.Index{} }

func testRecord(parent, hex string) *chainRecord {
	return &chainRecord{Chain: "sha256:" + strings.Repeat(hex, 64), Parent: parent, Digest: someDigest, Ref: "r.example/app:v1",
		Sources: []gearfs.SourceRef{{Registry: "https://r.example", Repo: "app", Manifest: someDigest, Credential: "r.example/app"}}, Layers: []string{someDigest}}
}

func TestRecords(t *testing.T) {
	r := &records{dir: t.TempDir()}
	low := testRecord("", "a")
	top := testRecord(low.Chain, "b")
	for _, rec := range []*chainRecord{low, top} {
		if err := r.create(rec, emptyIndex()); err != nil {
			t.Fatal(err)
		}
	}
	line, err := r.line(top.Chain)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*chainRecord{low, top}, line); diff != "" {
		t.Errorf("line of the top layer (-want +got):\n%s", diff)
	}
	if _, err := r.index(top); err != nil {
		t.Error(err)
	}
	dir, err := r.path(top.Chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.index(top); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("another index is read, error %v", err)
	}
	// The remains of a crash are removed, but not when records are listed: they could just be in
	// the making. Damaged records are reported and stay.
	for _, d := range []string{dir + ".new", filepath.Join(r.dir, "sha256-"+strings.Repeat("c", 64)), filepath.Join(r.dir, "sha256-"+strings.Repeat("d", 64))} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	damaged := filepath.Join(r.dir, "sha256-"+strings.Repeat("d", 64), "record.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var bad []string
	all, err := r.all(func(dir string, _ error) { bad = append(bad, dir) })
	if err != nil || len(all) != 2 || len(bad) != 1 {
		t.Errorf("%d records, damaged %q, error %v; want 2 and 1", len(all), bad, err)
	}
	if _, err := os.Stat(dir + ".new"); err != nil {
		t.Errorf("what may be being made is removed by who lists records: %v", err)
	}
	if err := r.clean(); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("left: %v, error %v; want two records and the damaged one", entries, err)
	}
	for range 2 {
		if err := r.remove(top.Chain); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.load(top.Chain); !errors.Is(err, errNoRecord) {
		t.Errorf("a removed record is %v", err)
	}
	loop := testRecord("sha256:"+strings.Repeat("e", 64), "e")
	if err := r.create(loop, emptyIndex()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.line(loop.Chain); err == nil {
		t.Error("a chain that is its own parent has an end")
	}
	for _, chain := range []string{"", "sha256:", "sha256:../../etc/passwd0000000000000000000", "SHA256:" + strings.Repeat("a", 64), "sha256:" + strings.Repeat("g", 64), "sha256:" + strings.Repeat("a", 300)} {
		if dir, err := r.path(chain); err == nil {
			t.Errorf("%.40q is taken for a chain, in %s", chain, dir)
		}
	}
}

func FuzzParseChainRecord(f *testing.F) {
	b, err := json.Marshal(testRecord("", "a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1,"image":"../x"}`))
	f.Add([]byte(`{"version":1,"image":".."}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := parseChainRecord(b)
		if err == nil && (strings.ContainsRune(rec.Image, '/') || rec.Image == ".." || rec.Image == "." || rec.Version != chainVersion) {
			t.Errorf("accepted: %+v", rec)
		}
	})
}

func TestRegistriesKeepCredentialsApart(t *testing.T) {
	keys, err := openKeychain(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	app, other := reference{host: "r.example", repo: "team/app"}, reference{host: "r.example", repo: "team/other"}
	r := newRegistries([]config.AgentRegistry{{Host: "r.example", URLs: []string{"https://a.example", "https://b.example"}, Prefix: "mirror/"}}, keys, nil, slog.New(slog.DiscardHandler))
	defer r.close()
	before, err := r.of(app)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := r.of(other); err != nil || same != before {
		t.Errorf("two images without credentials have two registries, error %v", err)
	}
	if err := keys.learn(app, client.Credential{Username: "alice", Password: "a"}); err != nil {
		t.Fatal(err)
	}
	mine, err := r.of(app)
	if err != nil {
		t.Fatal(err)
	}
	if mine == before {
		t.Error("a learnt credential is not used")
	}
	if theirs, err := r.of(other); err != nil || theirs != before {
		t.Errorf("another image gets the credential's registry, error %v", err)
	}
	if err := keys.learn(app, client.Credential{Username: "alice", Password: "renewed"}); err != nil {
		t.Fatal(err)
	}
	if renewed, err := r.of(app); err != nil || renewed == mine {
		t.Errorf("a renewed credential is not used, error %v", err)
	}
	if got := mine.repo("team/app"); got != "mirror/team/app" || len(mine.places) != 2 {
		t.Errorf("the repository is %s at %d places", got, len(mine.places))
	}
	for host, want := range map[string]string{"127.0.0.1:5000": "http://127.0.0.1:5000", "localhost": "http://localhost", "[::1]:1": "http://[::1]:1", "x.example": "https://x.example", "10.0.0.1": "https://10.0.0.1"} {
		if got := r.setting(host).URLs; len(got) != 1 || got[0] != want {
			t.Errorf("%s is asked at %q, want %s", host, got, want)
		}
	}
}

// TestRegistryPlaces has the places of a registry answer in several ways.
func TestRegistryPlaces(t *testing.T) {
	down := errors.New("connection refused")
	no := &oci.Error{Code: oci.CodeManifestUnknown}
	busy := &oci.Error{Code: oci.CodeTooManyRequests}
	for name, w := range map[string]struct {
		answers []error
		asked   int
		want    error
	}{
		"the first answers":  {[]error{nil, down}, 1, nil},
		"the first is down":  {[]error{down, nil}, 2, nil},
		"the first is busy":  {[]error{busy, nil}, 2, nil},
		"the first says no":  {[]error{no, nil}, 1, no},
		"all are down":       {[]error{down, down}, 2, down},
		"the second says no": {[]error{down, no}, 2, no},
	} {
		reg := &registry{host: "r.example", places: []*place{{url: "a"}, {url: "b"}}}
		asked := 0
		err := reg.try(t.Context(), func(*place) error { asked++; return w.answers[asked-1] })
		if asked != w.asked || !errors.Is(err, w.want) {
			t.Errorf("%s: %d places were asked, want %d; error %v, want %v", name, asked, w.asked, err, w.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked := 0
	reg := &registry{places: []*place{{url: "a"}, {url: "b"}}}
	if err := reg.try(ctx, func(*place) error { asked++; return ctx.Err() }); asked != 1 || err == nil {
		t.Errorf("%d places were asked for somebody who is gone, error %v", asked, err)
	}
	if err := (&registry{host: "r.example"}).try(t.Context(), nil); err == nil {
		t.Error("a registry without places answers")
	}
}
