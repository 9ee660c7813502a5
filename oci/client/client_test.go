package client_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exchange is a server that records its requests.
type exchange struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // "METHOD path?query"
}

func (e *exchange) requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.seen...)
}

func serve(t testing.TB, h http.HandlerFunc) *exchange {
	t.Helper()
	e := &exchange{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.seen = append(e.seen, r.Method+" "+r.URL.RequestURI())
		e.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(e.Close)
	return e
}

// dial returns a client that retries after short pauses.
func dial(t testing.TB, url string, o *client.Options) *client.Client {
	t.Helper()
	var opts client.Options
	if o != nil {
		opts = *o
	}
	if opts.RetryWait == 0 {
		opts.RetryWait = time.Millisecond
	}
	c, err := client.New(url, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func wantCode(t testing.TB, err error, code oci.Code) {
	t.Helper()
	if !oci.HasCode(err, code) {
		t.Fatalf("got error %v, want code %s", err, code)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		url string
		o   client.Options
	}{
		"scheme":      {url: "ftp://host"},
		"no host":     {url: "https://"},
		"bare host":   {url: "registry.example.com"},
		"password":    {url: "https://joe:hunter2@host"},
		"broken":      {url: "https://joe:hunter2@host:x%"},
		"query":       {url: "https://host?token=hunter2"},
		"two for TLS": {url: "https://host", o: client.Options{Transport: http.DefaultTransport, InsecureSkipVerify: true}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.New(tt.url, &tt.o)
			if err == nil {
				t.Fatal("got no error")
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestURLPrefixAndUserAgent(t *testing.T) {
	var agent string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { agent = r.UserAgent() })
	c := dial(t, s.URL+"/nested/", &client.Options{UserAgent: "probe/1"})
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GET /nested/v2/"}, s.requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if agent != "probe/1" {
		t.Errorf("got User-Agent %q", agent)
	}
}

// TestDockerHub checks the host names that images use for Docker Hub. They differ from
// the host of its API.
func TestDockerHub(t *testing.T) {
	for in, want := range map[string]string{
		"https://docker.io": "https://registry-1.docker.io", "https://Docker.io/": "https://registry-1.docker.io",
		"https://index.docker.io": "https://registry-1.docker.io", "https://registry-1.docker.io": "https://registry-1.docker.io",
		"https://docker.io.example": "https://docker.io.example", "http://docker.io:5000": "http://docker.io:5000",
	} {
		c, err := client.New(in, nil)
		if err != nil || c.URL() != want {
			t.Errorf("%s: got %v, %v, want %s", in, c, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
}

func TestErrors(t *testing.T) {
	d := oci.SHA256([]byte("x"))
	for name, tt := range map[string]struct {
		status int
		body   string
		op     func(context.Context, *client.Client) error
		code   oci.Code
		text   string
	}{
		"specified body": {404, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"gone"}]}`, func(ctx context.Context, c *client.Client) error {
			_, err := c.GetManifest(ctx, "a/b", "v1")
			return err
		}, oci.CodeManifestUnknown, "/v2/a/b/manifests/v1: 404: MANIFEST_UNKNOWN: gone"},
		"html": {404, "<html>", func(ctx context.Context, c *client.Client) error {
			_, err := c.GetBlob(ctx, "a", d)
			return err
		}, oci.CodeBlobUnknown, "404"},
		"foreign code": {404, `{"errors":[{"code":"NOT_FOUND","message":"x"}]}`, func(ctx context.Context, c *client.Client) error {
			_, _, err := c.Tags(ctx, "a", "", 10)
			return err
		}, oci.CodeNameUnknown, "404"},
		"head": {404, "", func(ctx context.Context, c *client.Client) error {
			_, err := c.ResolveBlob(ctx, "a", d)
			return err
		}, oci.CodeBlobUnknown, "HEAD "},
		"denied": {403, "", func(ctx context.Context, c *client.Client) error {
			return c.DeleteTag(ctx, "a", "v1")
		}, oci.CodeDenied, "DELETE "},
		"unauthorized": {401, "", func(ctx context.Context, c *client.Client) error {
			return c.DeleteManifest(ctx, "a", d)
		}, oci.CodeUnauthorized, "401"},
		"upload": {404, "", func(ctx context.Context, c *client.Client) error {
			_, err := c.UploadStatus(ctx, "a", "id")
			return err
		}, oci.CodeBlobUploadUnknown, "404"},
		"long body is cut": {400, strings.Repeat(" ", 70<<10) + `{"errors":[{"code":"NAME_INVALID"}]}`, func(ctx context.Context, c *client.Client) error {
			return c.Ping(ctx)
		}, oci.CodeUnknown, "400"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			err := tt.op(t.Context(), dial(t, s.URL, nil))
			wantCode(t, err, tt.code)
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got error %q, want it to contain %q", err, tt.text)
			}
			if n := len(s.requests()); n != 1 {
				t.Errorf("got %d requests, want 1", n)
			}
		})
	}
}

func TestNamesAreChecked(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	c, ctx := dial(t, s.URL, nil), t.Context()
	d := oci.SHA256(nil)
	for name, op := range map[string]func() error{
		"repository": func() error { _, err := c.GetBlob(ctx, "../x", d); return err },
		"from":       func() error { _, err := c.MountBlob(ctx, "a", "A", d); return err },
		"digest":     func() error { _, err := c.GetBlob(ctx, "a", "sha256:../../x"); return err },
		"tag":        func() error { _, err := c.GetManifest(ctx, "a", "x/../../y"); return err },
		"put tag": func() error {
			_, err := c.PutManifest(ctx, "a", oci.PutManifest{Bytes: []byte("{}"), Tags: []string{"?"}})
			return err
		},
		"upload": func() error { return c.CancelUpload(ctx, "a", "../x") },
		"dots":   func() error { return c.CancelUpload(ctx, "a", "..") },
	} {
		if err := op(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	if got := s.requests(); len(got) > 0 {
		t.Errorf("got requests %q, want none", got)
	}
}

func TestRetry(t *testing.T) {
	for name, tt := range map[string]struct {
		fail     int // number of bad answers before a good one
		status   int
		after    string
		op       string
		requests int
		ok       bool
		atLeast  time.Duration
	}{
		"503":                        {fail: 2, status: 503, op: "get", requests: 3, ok: true},
		"502 on HEAD":                {fail: 1, status: 502, op: "head", requests: 2, ok: true},
		"PUT of a manifest":          {fail: 1, status: 503, op: "put", requests: 2, ok: true},
		"too often":                  {fail: 100, status: 503, op: "get", requests: 5},
		"429 waits":                  {fail: 1, status: 429, after: "1", op: "get", requests: 2, ok: true, atLeast: time.Second},
		"429 waits too long":         {fail: 1, status: 429, after: "3600", op: "get", requests: 1},
		"404":                        {fail: 1, status: 404, op: "get", requests: 1},
		"POST":                       {fail: 1, status: 503, op: "post", requests: 1},
		"DELETE, nothing done":       {fail: 1, status: 429, op: "delete", requests: 2, ok: true},
		"DELETE, perhaps done":       {fail: 1, status: 502, op: "delete", requests: 1},
		"broken connection":          {fail: 2, status: 0, op: "get", requests: 3, ok: true},
		"broken connection, DELETE ": {fail: 1, status: 0, op: "delete", requests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
			var n int
			var mu sync.Mutex
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				sent, _ := io.ReadAll(r.Body)
				mu.Lock()
				n++
				bad := n <= tt.fail
				mu.Unlock()
				switch {
				case bad && tt.status == 0:
					panic(http.ErrAbortHandler)
				case bad:
					if tt.after != "" {
						w.Header().Set("Retry-After", tt.after)
					}
					w.WriteHeader(tt.status)
				case r.Method == http.MethodPut:
					if string(sent) != string(body) {
						t.Errorf("got body %q, want %q", sent, body)
					}
					w.WriteHeader(http.StatusCreated)
				case r.Method == http.MethodPost:
					w.Header().Set("Location", "/v2/a/blobs/uploads/1")
					w.WriteHeader(http.StatusAccepted)
				default:
					w.Header().Set("Content-Type", oci.MediaTypeOCIIndex)
					w.Header().Set("Docker-Content-Digest", string(oci.SHA256(body)))
					_, _ = w.Write(body)
				}
			})
			c, ctx := dial(t, s.URL, nil), t.Context()
			begin := time.Now()
			var err error
			switch tt.op {
			case "get":
				_, err = c.GetManifest(ctx, "a", "v1")
			case "head":
				_, err = c.ResolveManifest(ctx, "a", "v1")
			case "put":
				_, err = c.PutManifest(ctx, "a", oci.PutManifest{Bytes: body, Tags: []string{"v1"}})
			case "post":
				_, err = c.StartUpload(ctx, "a")
			case "delete":
				err = c.DeleteTag(ctx, "a", "v1")
			}
			if (err == nil) != tt.ok {
				t.Errorf("got error %v, want ok=%t", err, tt.ok)
			}
			if got := len(s.requests()); got != tt.requests {
				t.Errorf("got %d requests, want %d", got, tt.requests)
			}
			if took := time.Since(begin); took < tt.atLeast {
				t.Errorf("took %v, want at least %v", took, tt.atLeast)
			}
		})
	}
}

func TestCancelEndsRetries(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(503)
		cancel()
	})
	c := dial(t, s.URL, &client.Options{RetryWait: time.Hour, RetryMaxWait: time.Hour})
	if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// tokenServer is a registry that requires a token, together with its token service.
type tokenServer struct {
	*exchange
	mu     sync.Mutex
	valid  string
	scopes []string
	users  []string
}

func newTokenServer(t *testing.T, next http.HandlerFunc) *tokenServer {
	ts := &tokenServer{valid: "t1"}
	ts.exchange = serve(t, func(w http.ResponseWriter, r *http.Request) {
		ts.mu.Lock()
		valid := ts.valid
		ts.mu.Unlock()
		if r.URL.Path == "/token" {
			user, pass, _ := r.BasicAuth()
			ts.mu.Lock()
			ts.scopes = append(ts.scopes, strings.Join(r.URL.Query()["scope"], " "))
			ts.users = append(ts.users, user+":"+pass)
			ts.mu.Unlock()
			if pass == "wrong" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = fmt.Fprintf(w, `{"token":%q}`, valid)
			return
		}
		if r.Header.Get("Authorization") != "Bearer "+valid {
			w.Header().Set("Www-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="reg"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next(w, r)
	})
	return ts
}

func TestTokenFlow(t *testing.T) {
	s := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "5") })
	c := dial(t, s.URL, &client.Options{Username: "joe", Password: "secret"})
	for range 2 { // the second request reuses the token
		if _, err := c.ResolveBlob(t.Context(), "a/b", oci.SHA256([]byte("hello"))); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.valid = "t2" // the token expires
	s.mu.Unlock()
	if _, err := c.ResolveBlob(t.Context(), "a/b", oci.SHA256([]byte("hello"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"repository:a/b:pull", "repository:a/b:pull"}, s.scopes); diff != "" {
		t.Errorf("scopes of tokens (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"joe:secret", "joe:secret"}, s.users); diff != "" {
		t.Errorf("credentials (-want +got):\n%s", diff)
	}
}

func TestTokenRefused(t *testing.T) {
	s := newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {})
	c := dial(t, s.URL, &client.Options{Username: "joe", Password: "wrong"})
	err := c.Ping(t.Context())
	wantCode(t, err, oci.CodeUnauthorized)
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the error shows the password: %v", err)
	}
}

// TestTokenExpiresBeforeStream pushes a stream that cannot be sent twice. The client's
// token has expired by then.
func TestTokenExpiresBeforeStream(t *testing.T) {
	content := strings.Repeat("x", 3<<20)
	d := oci.SHA256([]byte(content))
	var got string
	var s *tokenServer
	s = newTokenServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.mu.Lock()
			s.valid = "t2"
			s.mu.Unlock()
			w.Header().Set("Location", "/v2/a/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		b, _ := io.ReadAll(r.Body)
		got = string(b)
		w.WriteHeader(http.StatusCreated)
	})
	c := dial(t, s.URL, &client.Options{Username: "joe", Password: "secret"})
	stream := io.MultiReader(strings.NewReader(content)) // hides Seek
	if _, err := c.PushBlob(t.Context(), "a", d, int64(len(content)), stream); err != nil {
		t.Fatal(err)
	}
	if got != content {
		t.Errorf("got %d bytes, want %d", len(got), len(content))
	}
}

func TestBasicFromDockerConfig(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if user, pass, ok := r.BasicAuth(); !ok || user != "joe" || pass != "secret" {
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	dir := t.TempDir()
	host := strings.TrimPrefix(s.URL, "http://")
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("joe:secret")))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	if err := dial(t, s.URL, &client.Options{DockerConfig: true}).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	wantCode(t, dial(t, s.URL, nil).Ping(t.Context()), oci.CodeUnauthorized)
}

// TestBasicFromPodman keeps a password where podman and skopeo do. What docker has for the
// registry comes first, and a directory of another user is left alone.
func TestBasicFromPodman(t *testing.T) {
	var user string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var ok bool
		if user, _, ok = r.BasicAuth(); !ok {
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	keep := func(file, user string) {
		t.Helper()
		config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, strings.TrimPrefix(s.URL, "http://"), base64.StdEncoding.EncodeToString([]byte(user+":secret")))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	docker, podman, run := t.TempDir(), filepath.Join(t.TempDir(), "auth.json"), t.TempDir()
	t.Setenv("DOCKER_CONFIG", docker)
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	login := func() error {
		user = ""
		return dial(t, s.URL, &client.Options{DockerConfig: true}).Ping(t.Context())
	}
	err := login()
	wantCode(t, err, oci.CodeUnauthorized)
	if !strings.Contains(err.Error(), "slipway login") {
		t.Errorf("nothing says what to do: %v", err)
	}
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	keep(filepath.Join(config, "containers", "auth.json"), "config")
	if err := login(); err != nil || user != "config" {
		t.Errorf("$XDG_CONFIG_HOME: logged in as %q, error %v", user, err)
	}
	keep(filepath.Join(run, "containers", "auth.json"), "runtime")
	if err := login(); err != nil || user != "runtime" {
		t.Errorf("$XDG_RUNTIME_DIR: logged in as %q, error %v", user, err)
	}
	keep(podman, "podman")
	t.Setenv("REGISTRY_AUTH_FILE", podman)
	if err := login(); err != nil || user != "podman" {
		t.Errorf("$REGISTRY_AUTH_FILE: logged in as %q, error %v", user, err)
	}
	keep(filepath.Join(docker, "config.json"), "docker")
	if err := login(); err != nil || user != "docker" {
		t.Errorf("both: logged in as %q, error %v", user, err)
	}
}

func TestCredentialFunc(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer ready-made" {
			w.Header().Set("Www-Authenticate", `Bearer realm="http://`+r.Host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	var asked string
	c := dial(t, s.URL, &client.Options{Credential: func(_ context.Context, host string) (client.Credential, error) {
		asked = host
		return client.Credential{AccessToken: "ready-made"}, nil
	}})
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimPrefix(s.URL, "http://"); asked != want {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

func TestRedirectLosesAuthorizationAndQuery(t *testing.T) {
	content := []byte("hello")
	var leaked atomic.Int32
	store := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			leaked.Add(1)
		}
		if r.URL.Path == "/bad" {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(content)
	})
	path := "/good"
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("Www-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, store.URL+path+"?X-Signature=hunter2", http.StatusTemporaryRedirect)
	})
	c := dial(t, s.URL, &client.Options{Username: "joe", Password: "secret", Retries: 1})
	if got := read(t, c, oci.SHA256(content)); got != "hello" {
		t.Errorf("got %q", got)
	}
	path = "/bad"
	_, err := c.GetBlob(t.Context(), "a", oci.SHA256(content))
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got error %v, want one without the signature", err)
	}
	if n := leaked.Load(); n > 0 {
		t.Errorf("the object store was sent Authorization %d times", n)
	}
}

func TestRedirectFromHTTPSToHTTP(t *testing.T) {
	plain := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL, http.StatusTemporaryRedirect)
	}))
	defer tls.Close()
	err := dial(t, tls.URL, &client.Options{Transport: tls.Client().Transport}).Ping(t.Context())
	if err == nil || len(plain.requests()) > 0 {
		t.Errorf("got error %v and requests %q, want an error and none", err, plain.requests())
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	s.Config.ErrorLog = discardLog()
	s.StartTLS()
	defer s.Close()
	if err := dial(t, s.URL, &client.Options{InsecureSkipVerify: true}).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	pool := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	if err := dial(t, s.URL, &client.Options{RootCAs: pool}).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	// A retry would show as a pause of an hour: certificate errors must not be retried.
	if err := dial(t, s.URL, &client.Options{RetryWait: time.Hour}).Ping(t.Context()); err == nil {
		t.Error("got no error for an unknown authority")
	}
}

// TestChallengesAreMet checks that the client answers a challenge that it can meet,
// wherever it stands in the response.
func TestChallengesAreMet(t *testing.T) {
	const basic, unknown = `Basic realm="b"`, "Negotiate a/b=="
	for name, tt := range map[string]struct {
		challenges []string // BEARER stands for the challenge of the token service
		o          client.Options
		want       string // the Authorization header that the registry accepts
	}{
		"one header, basic first":  {challenges: []string{basic + ", BEARER"}, want: "Bearer t"},
		"one header, bearer first": {challenges: []string{"BEARER, " + basic}, want: "Bearer t"},
		"two headers":              {challenges: []string{unknown, basic, "BEARER"}, want: "Bearer t"},
		"with a password":          {challenges: []string{basic, "BEARER"}, o: client.Options{Username: "u", Password: "p"}, want: "Bearer t"},
		"basic behind another":     {challenges: []string{unknown + ", " + basic}, o: client.Options{Username: "u", Password: "p"}, want: "Basic dTpw"},
		"a useless bearer":         {challenges: []string{"Bearer", basic}, o: client.Options{Username: "u", Password: "p"}, want: "Basic dTpw"},
	} {
		for form, bearer := range map[string]string{
			"absolute": `Bearer realm="http://HOST/t",service="s",scope="repository:a/b:pull registry:catalog:*"`,
			"relative": `bearer REALM = "\/t" , service=s`,
		} {
			t.Run(name+", "+form, func(t *testing.T) {
				s := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/t" {
						fmt.Fprint(w, `{"access_token":"t"}`)
						return
					}
					if r.Header.Get("Authorization") != tt.want {
						for _, c := range tt.challenges {
							w.Header().Add("WWW-Authenticate", strings.ReplaceAll(strings.ReplaceAll(c, "BEARER", bearer), "HOST", r.Host))
						}
						w.WriteHeader(http.StatusUnauthorized)
						return
					}
					fmt.Fprint(w, `{"name":"a/b","tags":["v1"]}`)
				})
				tags, _, err := dial(t, s.URL, &tt.o).Tags(t.Context(), "a/b", "", 10)
				if err != nil || len(tags) != 1 {
					t.Errorf("got %v, %v", tags, err)
				}
			})
		}
	}
}
