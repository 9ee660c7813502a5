package browser

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
)

// signer signs images as cosign does.
type signer struct{ key *ecdsa.PrivateKey }

// newSigner makes a key, and writes its public part into a file.
func newSigner(t *testing.T, path string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return &signer{key}
}

// sign returns the signature of an image, and the tag that it gets.
func (s *signer) sign(t *testing.T, image wire.Descriptor) (*imagetest.Bundle, string) {
	t.Helper()
	payload := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, image.Digest)
	sum := sha256.Sum256([]byte(payload))
	sig, err := ecdsa.SignASN1(rand.Reader, s.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.Artifact("", "application/vnd.dev.cosign.simplesigning.v1+json", []byte(payload), nil,
		map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)}), strings.ReplaceAll(image.Digest, ":", "-") + ".sig"
}

// pushDocumented pushes an image with a good signature, a bill of materials and a report of
// vulnerabilities.
func pushDocumented(t *testing.T, s *slipway.Server, by *signer) {
	t.Helper()
	top := imagetest.Hello(t)
	push(t, s, "team/documented", "1", &top.Bundle)
	signature, tag := by.sign(t, top.Top.Descriptor)
	push(t, s, "team/documented", tag, signature)
	var parts, holes []string
	for i := range 40 {
		parts = append(parts, fmt.Sprintf(`{"type":"library","group":"org.example.of.a.long.name","name":"component-%02d","version":"1.%d.0","licenses":[{"expression":"MIT OR BSD-3-Clause"}]}`, i, i))
		holes = append(holes, fmt.Sprintf(`{"VulnerabilityID":"CVE-2026-%04d","PkgName":"component-%02d","InstalledVersion":"1.0.%d","FixedVersion":"1.1.0","Severity":%q,"Title":"A title that says in many words what an attacker may do"}`,
			i, i, i, []string{"LOW", "MEDIUM", "HIGH", "CRITICAL"}[i%4]))
	}
	push(t, s, "team/documented", "bill", imagetest.Artifact("application/vnd.cyclonedx+json", "application/vnd.cyclonedx+json",
		[]byte(`{"bomFormat":"CycloneDX","specVersion":"1.5","metadata":{"timestamp":"2026-01-02T03:04:05Z","tools":{"components":[{"name":"syft","version":"1.0"}]}},"components":[`+strings.Join(parts, ",")+`]}`), &top.Top.Descriptor, nil))
	push(t, s, "team/documented", "scan", imagetest.Artifact("application/vnd.aquasec.trivy.report+json", "application/json",
		[]byte(`{"SchemaVersion":2,"CreatedAt":"2026-01-02","ArtifactName":"x","Results":[{"Vulnerabilities":[`+strings.Join(holes, ",")+`]}]}`), &top.Top.Descriptor, nil))
}

// listener starts a server that accepts all events, and returns its address.
func listener(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.Close)
	return s.URL
}

// report sends what a node says about an image.
func report(t *testing.T, s *slipway.Server, repo string, says map[string]any) {
	t.Helper()
	b, err := json.Marshal(says)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Client.Do(t.Context(), http.MethodPost, "/v2/"+repo+"/_slipway/gear/nodes", http.Header{"Content-Type": {"application/json"}}, b)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status/100 != 2 {
		t.Fatalf("a report of a node: status %d: %s", resp.Status, resp.Body)
	}
}

// reportNodes sends reports of some nodes, one of which lies as much as it can.
func reportNodes(t *testing.T, s *slipway.Server) {
	t.Helper()
	m, err := s.Client.GetManifest(t.Context(), "team/hello", "1.1.0")
	if err != nil {
		t.Fatal(err)
	}
	container := []map[string]any{{"id": strings.Repeat("0123456789abcdef", 4), "started": time.Now().UTC()}}
	for i := range 3 {
		report(t, s, "team/hello", map[string]any{"node": fmt.Sprintf("worker-%d.rack-7.berlin.example.com", i), "version": "0.2.0", "tier": "overlay over fuse",
			"cache_bytes": 1 << 30 * (i + 1), "cache_limit": 4 << 30, "image": s.Addr + "/team/hello:1.1.0", "manifest": m.Digest, "files": 3, "local_files": 3 - i,
			"bytes": 400_000, "local_bytes": 400_000 - 100_000*i, "mode": "lazy", "complete": i == 0, "background": i == 1, "opens": 12345, "errors": i, "containers": container,
			"peer_bytes": 300_000_000 * i, "registry_bytes": 100_000_000 * i, "sent_bytes": 50_000_000 * i, "start": began(i)})
	}
	far, before := time.Hour, -time.Hour
	lies := map[string]any{"began": time.Now().Add(1000 * time.Hour), "more": 1 << 40, "files": []map[string]any{
		{"path": evil, "from": "<b>", "wanted_ns": before, "asked_ns": far, "here_ns": before},
		{"path": "</title></svg>" + evil, "from": "\u202e\u202e", "wanted_ns": far, "asked_ns": before, "here_ns": far}}}
	report(t, s, "team/hello", map[string]any{"node": "\u202e" + evil, "image": evil, "manifest": m.Digest, "start": lies})
	report(t, s, "team/hello", map[string]any{"node": evil, "version": evil, "tier": evil, "image": evil, "manifest": evil, "mode": evil, "files": 1, "local_files": 7,
		"bytes": 1, "local_bytes": int64(1) << 62, "containers": []map[string]any{{"id": evil}}})
}

// began returns a start of an image, which was faster on some nodes than on others.
func began(slow int) map[string]any {
	var files []map[string]any
	for i := range 40 {
		asked := time.Duration(i/8*20) * time.Millisecond
		f := map[string]any{"path": fmt.Sprintf("usr/lib/python3.13/site-packages/package_%02d/__init__.py", i), "asked_ns": asked, "here_ns": asked + time.Duration(25+i*slow)*time.Millisecond}
		if i%5 != 4 {
			f["wanted_ns"] = time.Duration(12*i) * time.Millisecond
		}
		if i%3 != 0 {
			f["from"] = []string{"own", "series", "closure", "vote", "sibling"}[i%5]
		}
		files = append(files, f)
	}
	return map[string]any{"began": time.Now().Add(-time.Duration(slow) * time.Minute).UTC(), "over": slow != 1, "more": slow, "files": files}
}

// TestStart checks that the page of an image draws its last starts in all shapes, that a lying node
// cannot spoil them, and that only administrators see the names of nodes.
func TestStart(t *testing.T) {
	s := registry(t)
	w := open(t, "http://"+s.Addr)
	dir := pictures(t)
	const at = "/ui/image/team/hello:1.1.0"
	w.look(1280, "light")
	w.logIn("root", "secret of root")
	w.visit(at)
	w.want(at, "Last starts on nodes")
	if n := eval[int](w, `document.querySelectorAll("svg.start").length`); n != 3 {
		t.Errorf("%d starts are drawn, want 3", n)
	}
	// The lie began in the future, and so is the newest: two files, and 32 of two other nodes. Each
	// picture has another circle in its legend.
	if n := eval[int](w, `document.querySelectorAll("svg.start circle.want").length`); n != 2+32+32+3 {
		t.Errorf("%d circles are drawn, want %d", n, 2+32+32+3)
	}
	if text := w.text(); !strings.Contains(text, "worker-0.rack-7.berlin.example.com") || strings.Contains(text, "\u202e") {
		t.Errorf("the page lacks the name of a node, or shows one that turns text around:\n%s", text)
	}
	for _, shape := range shapes {
		w.look(shape.width, shape.theme)
		eval[bool](w, `document.querySelectorAll("details").forEach(d => d.open = true); true`)
		for _, problem := range eval[[]string](w, accessible) {
			t.Errorf("at %d px, %s: %s", shape.width, shape.theme, problem)
		}
		// Nothing is drawn outside of its picture, and texts do not lie upon each other.
		for _, problem := range eval[[]string](w, `[...document.querySelectorAll("svg.start")].flatMap(svg => {
			const in_ = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
			const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")].filter(e => e.textContent).map(e => [e.textContent, e.getBoundingClientRect()]), out = [];
			for (const e of svg.querySelectorAll("rect,circle,text")) if (!in_(e.getBoundingClientRect(), box)) out.push("outside: " + e.outerHTML);
			texts.forEach(([s, a], i) => texts.slice(i + 1).forEach(([u, b]) => {
				if (a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom) out.push("upon each other: " + s + " and " + u);
			}));
			return out.slice(0, 3);
		})`) {
			t.Errorf("at %d px, %s: %s", shape.width, shape.theme, problem)
		}
		w.picture(dir, fmt.Sprintf("start-%d-%s", shape.width, shape.theme))
	}
	w.visit("/ui/nodes")
	w.want("/ui/nodes", "75 %") // what came from other nodes
	w.click("header .user button")
	w.logIn("alice", "secret of alice")
	w.visit(at)
	w.want(at, "Last starts on nodes")
	if text := w.text(); strings.Contains(text, "worker-0") {
		t.Errorf("alice sees the names of nodes:\n%s", text)
	}
	if eval[bool](w, "!!window.hurt") {
		t.Error("a script out of a report ran")
	}
	w.check("the starts")
}

// rules returns the part of a configuration with replication, webhooks, signatures and orders.
func rules(t *testing.T, key string) string {
	t.Helper()
	return fmt.Sprintf(`
gear: {convert: sync}
warm:
  rules: [{repositories: [team/hello], nodes: "zone=eu-1a,!gpu", for: 12h}]
replication:
  - {name: to-frankfurt, url: "http://127.0.0.1:9", repositories: [team/hello], on_push: true, every: 1h}
  - {name: from-vendor, direction: pull, url: "http://127.0.0.1:9", repositories: [products/agent], prefix: vendor}
signatures: [{name: release, key: %s, repositories: ["team/**"]}]
notifications:
  networks: [127.0.0.0/8]
  endpoints:
    - {name: listener, url: %s/events, secret: of the listener}
    - {name: away, url: "http://127.0.0.1:9/a/long/path/of/a/listener/that/is/not/there", format: cloudevents}
`, key, listener(t))
}
