package workload

import (
	"os"
	"path/filepath"
	"testing"

	"example.org/slipway/workload/replay"
)

// TestReplayCredentials checks that the targets of a replay get the credentials in
// Docker's configuration. docker, podman and their helpers store these under several
// names.
func TestReplayCredentials(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	helper := "#!/bin/sh\nread host; echo \"{\\\"Username\\\":\\\"of-$host\\\",\\\"Secret\\\":\\\"s\\\"}\"\n"
	for name, text := range map[string]string{"docker-credential-test": helper,
		"docker-credential-none": "#!/bin/sh\necho 'credentials not found in native keychain'; exit 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const auth = `{"auth":"dTpwOnE="}` // u:p:q
	known := replay.Target{Username: "u", Password: "p:q"}
	for _, c := range []struct {
		config, url string
		want        replay.Target
	}{
		{`{"auths":{"r.example":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"r.example:5000":` + auth + `}}`, "http://r.example:5000", known},
		{`{"auths":{"r.example:5000":` + auth + `}}`, "http://r.example:5001", replay.Target{}},
		{`{"auths":{"r.example":` + auth + `}}`, "https://r.example/below", known},
		{`{"auths":{"https://r.example":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"http://r.example/":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"https://r.example/v1/":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"https://r.example/v2/":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"r.example/team":` + auth + `}}`, "https://r.example", known},
		{`{"auths":{"r.example.org":` + auth + `}}`, "https://r.example", replay.Target{}},
		{`{"auths":{"https://index.docker.io/v1/":` + auth + `}}`, "https://registry-1.docker.io", known},
		{`{"auths":{"https://index.docker.io/v1/":` + auth + `}}`, "https://index.docker.io", known},
		{`{"auths":{"https://index.docker.io/v1/":` + auth + `}}`, "https://docker.io", known},
		{`{"auths":{"r.example":{"username":"u","password":"p:q"}}}`, "https://r.example", known},
		{`{"auths":{"r.example":{"identitytoken":"tok","auth":""}}}`, "https://r.example", replay.Target{IdentityToken: "tok"}},
		{`{"auths":{"r.example":{"registrytoken":"tok"}}}`, "https://r.example", replay.Target{AccessToken: "tok"}},
		{`{"credHelpers":{"r.example":"test"}}`, "https://r.example", replay.Target{Username: "of-r.example", Password: "s"}},
		{`{"credHelpers":{"r.example":"none"},"auths":{}}`, "https://r.example", replay.Target{}},
		{`{"credsStore":"test"}`, "https://docker.io", replay.Target{Username: "of-https://index.docker.io/v1/", Password: "s"}},
		{`{}`, "https://r.example", replay.Target{}},
	} {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		f := replayFlags{targets: []string{"t=" + c.url}}
		if err := f.setTargets(t.Context()); err != nil {
			t.Errorf("%s with %s: %v", c.url, c.config, err)
			continue
		}
		got := f.o.Targets[0]
		if got.Username != c.want.Username || got.Password != c.want.Password || got.IdentityToken != c.want.IdentityToken || got.AccessToken != c.want.AccessToken {
			t.Errorf("%s with %s: got %q %q %q %q", c.url, c.config, got.Username, got.Password, got.IdentityToken, got.AccessToken)
		}
	}
}
