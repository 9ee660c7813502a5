package kubernetes

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

// byNamespace lets each of two namespaces of a cluster pull the images of its team.
const byNamespace = `
version: 0.1
auth:
  htpasswd: {path: %q}
  oidc:
    - {name: prod, issuer: %q, ca: %q, audience: registry.example.com, groups_claim: /kubernetes.io/namespace}
  access:
    - {repositories: ["**"], subjects: [root], actions: ["*"]}
    - {repositories: ["one/**"], subjects: ["group:prod:one"], actions: [pull]}
    - {repositories: ["two/**"], subjects: ["group:prod:two"], actions: [pull]}
`

// issuer is the part of a cluster that matters here: an API server that says with which keys it
// signs the tokens of service accounts.
type issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	enc := base64.RawURLEncoding.EncodeToString
	answers := map[string]func() any{
		"/.well-known/openid-configuration": func() any {
			return map[string]any{
				"issuer": i.URL, "jwks_uri": i.URL + "/openid/v1/jwks", "response_types_supported": []string{"id_token"},
				"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"},
			}
		},
		"/openid/v1/jwks": func() any {
			return map[string]any{"keys": []any{map[string]string{
				"use": "sig", "kty": "RSA", "kid": "k", "alg": "RS256", "n": enc(key.N.Bytes()), "e": enc(big.NewInt(int64(key.E)).Bytes()),
			}}}
		},
	}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[r.URL.Path]
		if answer == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer()); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(i.Close)
	return i
}

// authority writes the issuer's authority to a file.
func (i *issuer) authority(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// token returns the token of a service account, as the API server makes it for kubelet.
func (i *issuer) token(t *testing.T, namespace, account, audience string, lasts time.Duration) string {
	t.Helper()
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": i.URL, "aud": []string{audience}, "sub": "system:serviceaccount:" + namespace + ":" + account,
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(lasts).Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]string{"name": account, "uid": "1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// provided is an answer of a credential provider, as kubelet declares it.
type provided struct {
	APIVersion    string `json:"apiVersion"`
	Kind          string `json:"kind"`
	CacheKeyType  string `json:"cacheKeyType"`
	CacheDuration string `json:"cacheDuration"`
	Auth          map[string]struct {
		Username string `json:"username"`
		Password string `json:"password"`
	} `json:"auth"`
}

// provide starts the plugin as kubelet does.
func provide(t *testing.T, image, token string) (p provided, err error) {
	t.Helper()
	request, err := json.Marshal(map[string]string{
		"kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "image": image, "serviceAccountToken": token,
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), slipway.Binary(t), "credential-provider")
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.Env = bytes.NewReader(request), &said, []string{}
	out, err := cmd.Output()
	if err != nil {
		return p, fmt.Errorf("%w: %s", err, &said)
	}
	d := json.NewDecoder(bytes.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("the answer %q: %v", out, err)
	}
	return p, nil
}

// TestCredentialProvider has the tokens of two namespaces exchanged by the plugin, and pulls with
// its answers.
func TestCredentialProvider(t *testing.T) {
	i, passwords := newIssuer(t), filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(passwords, []byte(users()), 0o600); err != nil {
		t.Fatal(err)
	}
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: fmt.Sprintf(byNamespace, passwords, i.URL, i.authority(t))})
	root := s.Client.As("root", "secret")
	for _, repo := range []string{"one/app", "two/app"} {
		im := imagetest.Summed(t, 1, 1, 1, 1)
		for _, blob := range im.Blobs {
			if _, err := root.PushBlob(t.Context(), repo, blob.Data); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := root.PutManifest(t.Context(), repo, "1", im.Top.MediaType, im.Top.Data); err != nil {
			t.Fatal(err)
		}
	}
	for namespace, other := range map[string]string{"one": "two", "two": "one"} {
		p, err := provide(t, s.Addr+"/"+namespace+"/app", i.token(t, namespace, "default", "registry.example.com", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		if p.APIVersion != "credentialprovider.kubelet.k8s.io/v1" || p.Kind != "CredentialProviderResponse" || p.CacheKeyType != "Registry" || len(p.Auth) != 1 {
			t.Errorf("the answer is %+v", p)
		}
		if d, err := time.ParseDuration(p.CacheDuration); err != nil || d <= 30*time.Minute || d >= time.Hour {
			t.Errorf("kubelet may keep it for %q", p.CacheDuration)
		}
		c := s.Client.As(p.Auth[s.Addr].Username, p.Auth[s.Addr].Password)
		if _, err := c.CheckImage(t.Context(), namespace+"/app", "1"); err != nil {
			t.Errorf("%s cannot pull its image: %v", namespace, err)
		}
		if _, err := c.GetManifest(t.Context(), other+"/app", "1"); err == nil {
			t.Errorf("%s pulls the image of %s", namespace, other)
		}
	}
	for name, token := range map[string]string{
		"of another namespace": i.token(t, "three", "default", "registry.example.com", time.Hour),
		"for somebody else":    i.token(t, "one", "default", "https://kubernetes.default.svc", time.Hour),
		"that has ended":       i.token(t, "one", "default", "registry.example.com", -time.Second),
		"of another cluster":   newIssuer(t).token(t, "one", "default", "registry.example.com", time.Hour),
	} {
		p, err := provide(t, s.Addr+"/one/app", token)
		if err != nil {
			t.Errorf("a token %s: %v", name, err)
			continue
		}
		if _, err := s.Client.As(p.Auth[s.Addr].Username, p.Auth[s.Addr].Password).GetManifest(t.Context(), "one/app", "1"); err == nil {
			t.Errorf("a token %s pulls the image of namespace one", name)
		}
	}
	if _, err := provide(t, s.Addr+"/one/app", ""); err == nil || !strings.Contains(err.Error(), "tokenAttributes") {
		t.Errorf("without a token: %v", err)
	}
}
