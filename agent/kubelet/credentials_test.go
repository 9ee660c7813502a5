package kubelet

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tokenUntil returns the form of a token; nobody here verifies its signature.
func tokenUntil(end time.Time, id string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"RS256"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d,"jti":%q}`, end.Unix(), id)) + "." + part([]byte("signature"))
}

func TestProvideCredential(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	good := tokenUntil(now.Add(time.Hour), "1")
	request := func(image, token string) string {
		b, err := json.Marshal(map[string]any{
			"kind": "CredentialProviderRequest", "apiVersion": credentialAPI, "image": image, "serviceAccountToken": token,
			"serviceAccountAnnotations": map[string]string{"a": "b"}, "later": true,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, c := range map[string]struct{ in, host, duration, fails string }{
		"as kubelet asks":   {in: request("r.example/team/app", good), host: "r.example", duration: "59m0s"},
		"with port and tag": {in: request("r.example:5000/team/app:1", good), host: "r.example:5000", duration: "59m0s"},
		"with digest":       {in: request("localhost/a@sha256:"+strings.Repeat("a", 64), good), host: "localhost", duration: "59m0s"},
		"about to end":      {in: request("r.example/a", tokenUntil(now.Add(time.Second), "1")), host: "r.example", duration: "0s"},
		"no account":        {in: request("r.example/a", ""), fails: "tokenAttributes"},
		"no token":          {in: request("r.example/a", "secret"), fails: "not a token that expires"},
		"no end":            {in: request("r.example/a", "e30.e30.x"), fails: "not a token that expires"},
		"no registry":       {in: request("team/app", good), fails: "names no registry"},
		"older version":     {in: strings.Replace(request("r.example/a", good), credentialAPI, credentialAPI+"beta1", 1), fails: "apiVersion: " + credentialAPI},
		"no request":        {in: "", fails: "read the request"},
	} {
		var out bytes.Buffer
		err := ProvideCredential(strings.NewReader(c.in), &out, now)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) || out.Len() > 0 {
				t.Errorf("%s: error %v and the answer %q, want no answer and an error with %q", name, err, &out, c.fails)
			}
			if err != nil && strings.Contains(err.Error(), good) {
				t.Errorf("%s: the error holds the token", name)
			}
			continue
		}
		var got map[string]any
		if err != nil || json.Unmarshal(out.Bytes(), &got) != nil {
			t.Errorf("%s: error %v, answer %q", name, err, &out)
			continue
		}
		secret, _ := got["auth"].(map[string]any)[c.host].(map[string]any)
		if secret["password"] == "" || secret["username"] == "" {
			t.Errorf("%s: no secret for %s in %v", name, c.host, got["auth"])
		}
		delete(got, "auth")
		want := map[string]any{"kind": "CredentialProviderResponse", "apiVersion": credentialAPI, "cacheKeyType": "Registry", "cacheDuration": c.duration}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
