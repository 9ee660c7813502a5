package replicas

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// balancer is a load balancer with its configuration in deploy/.
type balancer struct {
	program, file string
	args          func(config string) []string
	// edit sets the address of the n-th replica, and own the addresses and paths of the balancer
	// itself.
	edit func(t *testing.T, config string, r *replica, n int) string
	own  func(t *testing.T, config string, dir, plain, addr string, c certificate) string
}

var balancers = []balancer{
	{"nginx", "nginx/nginx.conf",
		func(config string) []string { return []string{"-e", "stderr", "-g", "daemon off;", "-c", config} },
		func(t *testing.T, s string, r *replica, n int) string {
			return replace(t, s, fmt.Sprintf("10.0.0.1%d:5000", n), r.addr)
		},
		func(t *testing.T, s string, dir, plain, addr string, c certificate) string {
			s = replace(t, s, "listen 80;", "listen "+plain+";")
			s = replace(t, s, "listen 443 ", "listen "+addr+" ")
			s = replace(t, s, "/run/nginx.pid", filepath.Join(dir, "pid"))
			s = replace(t, s, "/var/log/nginx/error.log", "stderr")
			s = replace(t, s, "/etc/nginx/tls.crt", c.crt)
			return replace(t, s, "/etc/nginx/tls.key", c.key)
		}},
	{"haproxy", "haproxy/haproxy.cfg",
		func(config string) []string { return []string{"-db", "-f", config} },
		func(t *testing.T, s string, r *replica, n int) string {
			_, port, err := net.SplitHostPort(r.debug)
			if err != nil {
				t.Fatal(err)
			}
			return replace(t, s, fmt.Sprintf("10.0.0.1%d:5000 port 5001", n), r.addr+" port "+port)
		},
		func(t *testing.T, s string, _, plain, addr string, c certificate) string {
			s = replace(t, s, "bind :80", "bind "+plain)
			s = replace(t, s, "bind :443 ", "bind "+addr+" ")
			return replace(t, s, "/etc/haproxy/registry.pem", c.both)
		}},
}

// TestBalancers runs the configurations of deploy/ in front of three replicas and serves real
// clients through them. Only addresses and paths are changed.
func TestBalancers(t *testing.T) {
	b := newBed(t, 3, 3, "")
	cert := newCertificate(t)
	for _, c := range balancers {
		t.Run(c.program, func(t *testing.T) {
			plain, addr := slipway.FreeAddr(t), slipway.FreeAddr(t)
			p := c.start(t, b, plain, addr, cert)
			client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: cert.pool, ServerName: "registry.example.com"}}}
			t.Cleanup(client.CloseIdleConnections)
			proc.Poll(t, 20*time.Second, c.program+" answers", func() bool {
				select {
				case <-p.Exited():
					t.Fatalf("%s has ended: %s", c.program, p.Log(4096))
				default:
				}
				resp, err := client.Get("https://" + addr + "/v2/")
				if err != nil {
					return false
				}
				resp.Body.Close()
				return resp.StatusCode == http.StatusOK
			})
			checkRedirect(t, plain)
			balanced(t, b, c.program, addr, client)
		})
	}
}

// start starts the balancer on two addresses, for plain HTTP and TLS.
func (c *balancer) start(t *testing.T, b *bed, plain, addr string, cert certificate) *proc.Process {
	t.Helper()
	program := tool.System(t, c.program)
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", c.file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := c.own(t, string(text), dir, plain, addr, cert)
	for i, r := range b.replicas {
		s = c.edit(t, s, r, i+1)
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
	return proc.Start(t, exec.Command(program, c.args(config)...), filepath.Join(dir, "log"))
}

// replace replaces a text that must be present.
func replace(t *testing.T, s, old, with string) string {
	t.Helper()
	if !strings.Contains(s, old) {
		t.Fatalf("the configuration does not have %q", old)
	}
	return strings.ReplaceAll(s, old, with)
}

func checkRedirect(t *testing.T, addr string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/v2/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "registry.example.com"
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != "https://registry.example.com/v2/" {
		t.Errorf("plain HTTP is answered %d, Location %q", resp.StatusCode, resp.Header.Get("Location"))
	}
}

// balanced pushes and pulls through a balancer, including while a replica is killed.
func balanced(t *testing.T, b *bed, name, addr string, client *http.Client) {
	dir := t.TempDir()
	env := tool.NewEnv(dir)
	image := imagetest.NewImage("amd64", imagetest.NewLayer(imagetest.File{Name: "a", Data: content(1, 300_000)}), imagetest.NewLayer(imagetest.File{Name: "b", Data: content(2, 7<<20)}))
	layout := filepath.Join(dir, "layout")
	image.WriteLayout(t, layout, "v1")
	ref := addr + "/" + name + "/app:v1"
	crane, skopeo := tool.Built(t, "crane"), tool.System(t, "skopeo")
	env.Run(t, skopeo, "copy", "--insecure-policy", "--dest-tls-verify=false", "oci:"+layout+":v1", "docker://"+ref)
	env.Run(t, crane, "push", "--insecure", layout, addr+"/"+name+"/crane:v1")
	pull := func(to string) {
		t.Helper()
		got := filepath.Join(dir, to)
		env.Run(t, skopeo, "copy", "--insecure-policy", "--src-tls-verify=false", "docker://"+ref, "oci:"+got+":v1")
		env.Run(t, crane, "pull", "--insecure", "--format=oci", ref, got+"-crane")
		env.Run(t, crane, "validate", "--insecure", "--remote", ref)
	}
	pull("first")

	// This upload's requests go wherever the balancer sends them.
	before := b.started(t)
	for i := range 4 {
		data := content(uint64(100+i), 9<<20)
		if err := uploadThrough(t, client, "https://"+addr, name+"/hop", data, 2<<20); err != nil {
			t.Errorf("an upload in chunks: %v", err)
		}
	}
	used := 0
	for i, n := range b.started(t) {
		if n > before[i] {
			used++
		}
	}
	if used < 2 {
		t.Errorf("the requests of all uploads went to %d replica: the test has tested nothing", used)
	}

	// Killing a replica must not make a pull fail.
	b.replicas[0].setDown(true)
	b.replicas[0].signal(syscall.SIGKILL)
	for i := range 3 {
		pull(fmt.Sprint("killed", i))
	}
	b.replicas[0].setDown(false)
	b.waitReady()
	pull("last")
}

// started returns how many requests each replica has answered.
func (b *bed) started(t *testing.T) []int { return b.metric(t, "registry_http_requests_total{") }

// metric returns, for each replica, the sum of its metrics that begin with a prefix.
func (b *bed) metric(t *testing.T, prefix string) []int {
	t.Helper()
	var list []int
	for _, r := range b.replicas {
		resp, err := http.Get("http://" + r.debug + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(body.String()) {
			if i := strings.LastIndexByte(line, ' '); i > 0 && strings.HasPrefix(line, prefix) {
				v, err := strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
				if err != nil {
					t.Fatal(err)
				}
				n += int(v)
			}
		}
		list = append(list, n)
	}
	return list
}

// uploadThrough uploads data in chunks, reads it back whole, and compares it.
func uploadThrough(t *testing.T, client *http.Client, base, repo string, data []byte, chunk int) error {
	t.Helper()
	do := func(method, path string, h http.Header, body []byte, want int) (*http.Response, []byte, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, path, bytes.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		for k, v := range h {
			req.Header[k] = v
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		var got bytes.Buffer
		if _, err := got.ReadFrom(resp.Body); err != nil {
			return nil, nil, err
		}
		if resp.StatusCode != want {
			return nil, nil, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, got.Bytes()[:min(got.Len(), 300)])
		}
		return resp, got.Bytes(), nil
	}
	resp, _, err := do(http.MethodPost, base+"/v2/"+repo+"/blobs/uploads/", nil, nil, http.StatusAccepted)
	for off := 0; err == nil && off < len(data); off += chunk {
		part := data[off:min(off+chunk, len(data))]
		resp, _, err = do(http.MethodPatch, base+resp.Header.Get("Location"), http.Header{"Content-Type": {binaryType},
			"Content-Range": {fmt.Sprintf("%d-%d", off, off+len(part)-1)}}, part, http.StatusAccepted)
	}
	if err != nil {
		return err
	}
	digest := wire.Digest(data)
	put, err := wire.WithDigest(resp.Header.Get("Location"), digest)
	if err != nil {
		return err
	}
	if _, _, err = do(http.MethodPut, base+put, nil, nil, http.StatusCreated); err != nil {
		return err
	}
	_, got, err := do(http.MethodGet, base+"/v2/"+repo+"/blobs/"+digest, nil, nil, http.StatusOK)
	if err == nil && !bytes.Equal(got, data) {
		err = fmt.Errorf("read back %d bytes of %d", len(got), len(data))
	}
	return err
}

// certificate is a certificate for registry.example.com, in files.
type certificate struct {
	crt, key, both string
	pool           *x509.CertPool
}

func newCertificate(t *testing.T) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "registry.example.com"},
		DNSNames: []string{"registry.example.com"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	dir := t.TempDir()
	c := certificate{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "tls.pem"), x509.NewCertPool()}
	c.pool.AppendCertsFromPEM(crt)
	for file, data := range map[string][]byte{c.crt: crt, c.key: secret, c.both: append(crt, secret...)} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
