package client_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci/client"
)

func wantCredential(t testing.TB, f client.CredentialFunc, host string, want client.Credential) {
	t.Helper()
	got, err := f(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", host, diff)
	}
}

func TestStaticCredential(t *testing.T) {
	me := client.Credential{Username: "me", Password: "secret"}
	f := client.StaticCredential("Registry.example.com:5000", "me", "secret")
	wantCredential(t, f, "registry.example.com:5000", me)
	wantCredential(t, f, "registry.example.com", client.Credential{})
	wantCredential(t, client.StaticCredential("docker.io", "me", "secret"), "registry-1.docker.io", me)
}

func TestDockerCredential(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	f, err := client.DockerCredential(file)
	if err != nil {
		t.Fatal(err)
	}
	wantCredential(t, f, "a.example.com", client.Credential{})
	write := func(host, password string) {
		t.Helper()
		auth := base64.StdEncoding.EncodeToString([]byte("me:" + password))
		if err := os.WriteFile(file, []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.example.com", "one")
	wantCredential(t, f, "a.example.com", client.Credential{Username: "me", Password: "one"})
	write("a.example.com", "another")
	wantCredential(t, f, "a.example.com", client.Credential{Username: "me", Password: "another"})
	write("https://index.docker.io/v1/", "hub")
	wantCredential(t, f, "registry-1.docker.io", client.Credential{Username: "me", Password: "hub"})

	if err := os.WriteFile(file, []byte("{secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f(t.Context(), "a.example.com"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	if _, err := client.DockerCredential(file); err == nil {
		t.Error("a malformed file is taken")
	}
}
