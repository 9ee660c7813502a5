package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
)

// TestDistributionProxy reads proxy sections like those in Distribution's documentation.
func TestDistributionProxy(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "with a password", text: "version: 0.1\nproxy: {remoteurl: \"https://registry-1.docker.io\", username: reader, password: hush, ttl: 168h}\n",
			want: func(c *config.Config) {
				c.Proxy.RemoteURL, c.Proxy.Username, c.Proxy.Password, c.Proxy.TTL = "https://registry-1.docker.io", "reader", "hush", 168*time.Hour
			},
			warned: []string{"c.yml:2 proxy"}, // every user of this machine has access
		},
		{
			name: "with a credential helper", text: "version: 0.1\nproxy: {remoteurl: \"https://123.dkr.ecr.eu-central-1.amazonaws.com\", exec: {command: docker-credential-ecr-login, lifetime: 1h}, ttl: 0}\n",
			want: func(c *config.Config) {
				c.Proxy.RemoteURL = "https://123.dkr.ecr.eu-central-1.amazonaws.com"
				c.Proxy.Exec = config.ProxyExec{Command: "docker-credential-ecr-login", Lifetime: time.Hour}
			},
			warned: []string{"c.yml:2 proxy"},
		},
		{
			name: "from the environment", env: []string{"REGISTRY_PROXY_REMOTEURL=http://localhost:5001"}, text: "version: 0.1\n",
			want: func(c *config.Config) { c.Proxy.RemoteURL = "http://localhost:5001" },
		},
	})
}

// TestNamespaces checks that each name that clients use for an upstream leads to it, and
// that ambiguous names lead nowhere.
func TestNamespaces(t *testing.T) {
	hub := func(name string) map[string]string {
		m := map[string]string{"index.docker.io": name, "registry-1.docker.io": name, "registry-1.docker.io:443": name}
		if name != "docker.io" {
			m["docker.io"] = name
		}
		return m
	}
	for _, tc := range []struct {
		name, text string
		want       map[string]string
	}{
		{"with a port", `remoteurl: "http://Upstream.example.com:5000"`, map[string]string{"upstream.example.com:5000": "upstream.example.com-5000"}},
		{"with the usual port", `remoteurl: "https://upstream.example.com:443/"`,
			map[string]string{"upstream.example.com": "upstream.example.com-443", "upstream.example.com:443": "upstream.example.com-443"}},
		{"without TLS", `remoteurl: "http://quay.io"`, map[string]string{"quay.io:80": "quay.io"}},
		{"Docker Hub", `remoteurl: "https://registry-1.docker.io"`, hub("docker.io")},
		{"Docker Hub by another name", `upstreams: [{name: hub, url: "https://registry-1.docker.io"}]`, hub("hub")},
		{"Docker Hub twice", `upstreams: [{name: docker.io}, {name: hub-private, url: "https://registry-1.docker.io"}]`,
			map[string]string{"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io"}},
		{"Docker Hub by way of a mirror", `upstreams: [{name: docker.io, url: "https://mirror.gcr.io"}]`,
			map[string]string{"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io", "mirror.gcr.io": "docker.io", "mirror.gcr.io:443": "docker.io"}},
		{"an address", `upstreams: [{name: six, url: "http://[::1]:5000"}, {name: four, url: "http://10.0.0.1:5000"}]`,
			map[string]string{"[::1]:5000": "six", "10.0.0.1:5000": "four"}},
		{"two ports", `upstreams: [{name: quay.io}, {name: other, url: "https://quay.io:8443"}]`, map[string]string{"quay.io:443": "quay.io", "quay.io:8443": "other"}},
		{"one registry twice", `upstreams: [{name: a, url: "http://x.test:1"}, {name: b, url: "http://x.test:1"}, {name: c, url: "http://x.test:1"}]`, map[string]string{}},
		{"said otherwise", `upstreams: [{name: a, url: "http://x.test:1"}, {name: b, url: "http://y.test:1", hosts: ["x.test:1"]}]`, map[string]string{"y.test:1": "b"}},
		{"with the path of the API", `remoteurl: "http://x.test:1/v2/"`, map[string]string{"x.test:1": "x.test-1"}},
		{"a part of a registry", `upstreams: [{name: a, url: "https://harbor.test/v2/team"}]`, map[string]string{}},
	} {
		c, _, err := parse("version: 0.1\nproxy: {" + tc.text + "}")
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if d := cmp.Diff(tc.want, c.Proxy.Namespaces()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestUpstreamsOf(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string // name, URL, whether library/ is added, whether tags are always checked
		def        string
	}{
		{"none", "proxy: {ttl: 1h}", nil, ""},
		{"Docker Hub by Distribution's key", `proxy: {remoteurl: "https://registry-1.docker.io"}`, []string{"docker.io https://registry-1.docker.io true true"}, "docker.io"},
		{"another", `proxy: {remoteurl: "http://Upstream.example.com:5000"}`, []string{"upstream.example.com-5000 http://Upstream.example.com:5000 false true"}, "upstream.example.com-5000"},
		{"an address", `proxy: {remoteurl: "http://[::1]:5000"}`, nil, ""}, // refused below
		{"several", `proxy: {upstreams: [{name: docker.io}, {name: quay.io, library: true}, {name: inner, url: "http://inner:5000/v2/x", ttl: 0}], default: quay.io}`,
			[]string{"docker.io https://registry-1.docker.io true false", "quay.io https://quay.io true false", "inner http://inner:5000/v2/x false true"}, "quay.io"},
		{"both", `proxy: {upstreams: [{name: quay.io}], remoteurl: "https://docker.io"}`,
			[]string{"quay.io https://quay.io false false", "docker.io https://registry-1.docker.io true true"}, "docker.io"},
		{"Docker Hub by the name of images", `proxy: {upstreams: [{name: docker.io, url: "https://docker.io/"}, {name: hub, url: "https://docker.io"}, {name: inner, url: "https://docker.io/v2/x"}]}`,
			[]string{"docker.io https://registry-1.docker.io true false", "hub https://registry-1.docker.io false false", "inner https://docker.io/v2/x false false"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := parse("version: 0.1\n" + tc.text)
			if tc.name == "an address" {
				if err == nil || !strings.Contains(err.Error(), "proxy.remoteurl: has a host that cannot be part of a repository name") {
					t.Fatalf("got error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, u := range c.Proxy.All() {
				got = append(got, strings.Join([]string{u.Name, u.URL, boolText(u.UsesLibrary()), boolText(u.TTL == 0)}, " "))
				if u.Concurrency != 32 || u.StaleIfError != 720*time.Hour {
					t.Errorf("%s lacks its defaults: %+v", u.Name, u)
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("upstreams (-want +got):\n%s", d)
			}
			if got := c.Proxy.DefaultName(); got != tc.def {
				t.Errorf("got default %q, want %q", got, tc.def)
			}
			if got := c.Proxy.Enabled(); got != (len(tc.want) > 0) {
				t.Errorf("got Enabled %v", got)
			}
		})
	}
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

func TestProxyProblems(t *testing.T) {
	runProblems(t, []problemCase{
		{"upstreams", `proxy:
  upstreams:
  - {url: "ftp://x"}
  - {name: "host:5000", url: "https://me:hush@x", mirrors: ["https://y", "z"]}
  - {name: a/b, url: "https://x/?hush"}
  - {name: twice, username: me}
  - {name: twice, password: hush, docker_config: /x}
  - {name: e, credential_command: {command: [""], every: 0s}, password: hush}
  - {name: f, tls: {certificate: c}, http_proxy: "ftp://hush", redirects: [10.0.0.0/8, here]}
  - {name: g, platforms: [linux, linux/arm64/v8, Linux/amd64], concurrency: 0, ttl: -1s}
  - {name: h, allow: [{}], deny: [{repositories: ["A"], tags: ["("]}]}
  - {name: i, hosts: [a.example.com, "https://b", A.example.com, ""]}
  - {name: j, colour: red}`, []string{
			"c.yml:14: unknown key proxy.upstreams[10].colour",
			"c.yml:9: proxy.upstreams[5].credential_command.every: must be at least 1s",
			"c.yml:11: proxy.upstreams[7].concurrency: must be at least 1",
			"c.yml:11: proxy.upstreams[7].ttl: must be at least 0s",
			"c.yml:4: proxy.upstreams[0].name: is missing",
			"c.yml:4: proxy.upstreams[0].url: must be an http or https URL",
			"c.yml:5: proxy.upstreams[1].name: must be one part of a repository name: lower-case letters and digits with single dots, hyphens or underscores between them; a port goes into url only",
			"c.yml:5: proxy.upstreams[1].url: must hold no credentials: they have keys of their own",
			"c.yml:5: proxy.upstreams[1].mirrors[1]: must be an http or https URL",
			"c.yml:6: proxy.upstreams[2].name: must be one part of a repository name: lower-case letters and digits with single dots, hyphens or underscores between them; a port goes into url only",
			"c.yml:6: proxy.upstreams[2].url: must be a URL without a query",
			"c.yml:7: proxy.upstreams[3].password: is missing: there is a username",
			"c.yml:8: proxy.upstreams[4].name: is the name of another upstream too",
			"c.yml:8: proxy.upstreams[4].username: is missing: there is a password",
			"c.yml:8: proxy.upstreams[4].docker_config: stands beside another source of credentials; use one of them",
			"c.yml:9: proxy.upstreams[5].credential_command.command[0]: is missing: it is the program",
			"c.yml:9: proxy.upstreams[5].password: stands beside credential_command; use one of them",
			"c.yml:10: proxy.upstreams[6].tls.key: is missing: a client certificate needs both",
			"c.yml:10: proxy.upstreams[6].http_proxy: must be an http, https or socks5 URL, or none",
			"c.yml:10: proxy.upstreams[6].redirects[1]: must be an address (192.0.2.1) or a network (10.0.0.0/8)",
			"c.yml:11: proxy.upstreams[7].platforms[0]: must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT in lower case",
			"c.yml:11: proxy.upstreams[7].platforms[2]: must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT in lower case",
			"c.yml:12: proxy.upstreams[8].allow[0]: says nothing: give repositories, tags or both",
			"c.yml:12: proxy.upstreams[8].deny[0].repositories[0]: matches no repository: it has a character that no repository name has",
			"c.yml:12: proxy.upstreams[8].deny[0].tags[0]: is not a regular expression: missing closing )",
			"c.yml:13: proxy.upstreams[9].hosts[1]: must be a host name, with a port if it is not the usual one",
			"c.yml:13: proxy.upstreams[9].hosts[2]: is given twice, or the name of an upstream: it can lead to one place only",
			"c.yml:13: proxy.upstreams[9].hosts[3]: must be a host name, with a port if it is not the usual one",
		}},
		{"any", `storage: {maintenance: {readonly: {enabled: true}}}
proxy:
  any: [ghcr.io, "https://quay.io", "http://*.example.com", "*.example.com:0"]
  mappings:
  - {from: "gh/*", to: "ghcr.io/*"}
  - {from: "q/*", to: "quay.io/*"}`, []string{
			"c.yml:4: proxy.any[1]: is a URL; write the host only, which is asked by https",
			"c.yml:4: proxy.any[2]: has http:// before a host with *: only a host that is written out may be spoken to in clear",
			"c.yml:4: proxy.any[3]: has a port that is neither * nor a number from 1 to 65535",
			"c.yml:7: proxy.mappings[1].to: must begin with the name of an upstream",
			"c.yml:4: proxy.any: cannot be used with storage.maintenance.readonly: a mirror stores what it fetches; use proxy.offline to serve what is here",
		}},
		{"names", `proxy:
  upstreams: [{name: docker.io}]
  default: quay.io
  mappings:
  - {from: "hub/*", to: "docker.io/*"}
  - {from: "hub/*", to: "docker.io/other/*"}
  - {from: "a*", to: "docker.io/*"}
  - {from: nginx, to: docker.io/*}
  - {from: x, to: quay.io/x}
  - {from: y, to: ""}
  own_names: ["a b"]`, []string{
			"c.yml:12: proxy.own_names[0]: must be a host name, with a port if it is not the usual one",
			"c.yml:4: proxy.default: is the name of no upstream",
			"c.yml:7: proxy.mappings[1].from: is mapped already: the first mapping that fits a name holds, so what says more goes first",
			"c.yml:8: proxy.mappings[2].from: must be a repository name, or the beginning of one and /*",
			"c.yml:9: proxy.mappings[3].to: must end with /* exactly where from does",
			"c.yml:10: proxy.mappings[4].to: must begin with the name of an upstream",
			"c.yml:11: proxy.mappings[5].to: must be a repository name, or the beginning of one and /*",
		}},
		{"remoteurl", `proxy:
  upstreams: [{name: docker.io}, {name: quay.io}]
  remoteurl: https://index.docker.io
  username: me
  exec: {command: x}
  default: quay.io`, []string{
			"c.yml:4: proxy.remoteurl: is also one of proxy.upstreams: write proxy.default instead",
			"c.yml:6: proxy.exec: stands beside username and password; use one of them",
			"c.yml:7: proxy.default: is another upstream than proxy.remoteurl, which is the default by itself",
		}},
		{"names and hosts", `proxy:
  upstreams:
  - {name: docker.io, hosts: [docker.io, Quay.io, localhost-5000]}
  - {name: quay.io, hosts: [mirror.example.com]}
  remoteurl: "http://localhost:5000"
  own_names: [docker.io]`, []string{
			"c.yml:4: proxy.upstreams[0].hosts[1]: is given twice, or the name of an upstream: it can lead to one place only",
			"c.yml:4: proxy.upstreams[0].hosts[2]: is given twice, or the name of an upstream: it can lead to one place only",
			"c.yml:7: proxy.own_names[0]: is given twice, or the name of an upstream: it can lead to one place only",
		}},
		{"mappings that hide others", `proxy:
  upstreams: [{name: docker.io}, {name: quay.io}]
  mappings:
  - {from: docker.io/one, to: quay.io/one}
  - {from: "docker.io/*", to: "quay.io/*"}
  - {from: "docker.io/example/*", to: "quay.io/other/*"}
  - {from: docker.io/two, to: quay.io/two}
  - {from: docker.iox, to: quay.io/three}`, []string{
			"c.yml:7: proxy.mappings[2].from: is mapped already: the first mapping that fits a name holds, so what says more goes first",
			"c.yml:8: proxy.mappings[3].from: is mapped already: the first mapping that fits a name holds, so what says more goes first",
		}},
		{"limits where nothing comes again", `proxy:
  upstreams: [{name: docker.io}, {name: quay.io, offline: true}]
  ttl: 30d
  max_bytes: 1GiB
  offline: true`, []string{
			"c.yml:6: proxy.offline: cannot be used with proxy.ttl, which removes images: they could not be fetched again; leave it out and use slipway mirror prune",
			"c.yml:3: proxy.upstreams[1].offline: cannot be used with proxy.ttl, which removes images: they could not be fetched again; leave it out and use slipway mirror prune",
			"c.yml:6: proxy.offline: cannot be used with proxy.max_bytes, which removes images: they could not be fetched again; leave it out and use slipway mirror prune",
			"c.yml:3: proxy.upstreams[1].offline: cannot be used with proxy.max_bytes, which removes images: they could not be fetched again; leave it out and use slipway mirror prune",
		}},
		{"credentials for nothing", `proxy: {username: me, password: hush}`, []string{
			"c.yml:2: proxy.remoteurl: is missing: there are credentials for it; each of proxy.upstreams has its own",
		}},
		{"other sections", `proxy: {upstreams: [{name: docker.io, hosts: [registry.example.com]}]}
http: {host: "https://registry.example.com:5000"}
storage: {maintenance: {readonly: {enabled: true}}}`, []string{
			"c.yml:2: proxy.upstreams: cannot be used with storage.maintenance.readonly: a mirror stores what it fetches; use proxy.offline to serve what is here",
			"c.yml:2: proxy.upstreams[0].hosts[0]: is the host of http.host: clients could not reach the repositories that are pushed here",
		}},
	})
}

// TestPrivateContent checks that content behind the credentials of an upstream is not
// open to everybody unless the file says so explicitly.
func TestPrivateContent(t *testing.T) {
	const (
		upstream = "proxy: {upstreams: [{name: quay.io}, {name: docker.io, username: me, password: hush%s}]}\n"
		open     = "http: {addr: \":5000\", insecure_open_to_network: true}\n"
		rules    = "http: {addr: \":5000\"}\nauth: {htpasswd: {path: x}, access: [{repositories: [%s], subjects: [anonymous], actions: [%s]}]}\n"
		problem  = "proxy.upstreams[1].insecure_open_to_anonymous: is missing"
		warning  = "proxy.upstreams[1].insecure_open_to_anonymous"
	)
	rule := func(pattern, action string) string {
		return strings.Replace(strings.Replace(rules, "%s", `"`+pattern+`"`, 1), "%s", action, 1)
	}
	for _, tc := range []struct {
		name, rest string
		refused    bool
		warned     string // the warning without consent, if the file is not refused
	}{
		{name: "loopback", rest: "", warned: "proxy.upstreams[1]"},
		{name: "open to the network", rest: open, refused: true},
		{name: "anonymous may pull everything", rest: rule("**", "pull"), refused: true},
		{name: "anonymous may do everything below the upstream", rest: rule("docker.io/**", `"*"`), refused: true},
		{name: "anonymous may pull some of it", rest: rule("docker.io/library/*", "pull"), refused: true},
		{name: "by a wildcard in the upstream's name", rest: rule("*.io/*", "pull"), refused: true},
		{name: "anonymous may pull elsewhere", rest: rule("quay.io/**", "pull")},
		{name: "a pattern of one part reaches nothing below", rest: rule("*", "pull")},
		{name: "anonymous may push only", rest: rule("**", "push")},
		{name: "only users", rest: "http: {addr: \":5000\"}\nauth: {htpasswd: {path: x}}\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := "version: 0.1\n" + strings.Replace(upstream, "%s", "", 1) + tc.rest
			_, ws, err := parse(text)
			if tc.refused != (err != nil) || err != nil && !strings.Contains(err.Error(), problem) {
				t.Errorf("got error %v, want one: %v", err, tc.refused)
			}
			if !tc.refused && warnedOf(ws, "proxy.upstreams[1]") != (tc.warned != "") {
				t.Errorf("got warnings %v, want one of %q", ws, tc.warned)
			}
			text = "version: 0.1\n" + strings.Replace(upstream, "%s", ", insecure_open_to_anonymous: true", 1) + tc.rest
			_, ws, err = parse(text)
			if err != nil || tc.refused != warnedOf(ws, warning) {
				t.Errorf("with consent: got warnings %v and error %v", ws, err)
			}
		})
	}
}

// TestPrivateContentSources checks that every source of credentials counts, and that
// without credentials no consent is needed.
func TestPrivateContentSources(t *testing.T) {
	for keys, refused := range map[string]bool{
		"":                           false,
		", docker_config: /x":        true,
		", platforms: [linux/amd64]": false,
		", credential_command: {command: [x]}, username: AWS": true,
		", tls: {certificate: c, key: k}":                     true,
		", tls: {ca: c}":                                      false,
	} {
		_, _, err := parse("version: 0.1\nproxy: {upstreams: [{name: docker.io" + keys + "}]}\nhttp: {addr: \":5000\", insecure_open_to_network: true}\n")
		if refused != (err != nil) {
			t.Errorf("%q: got error %v, want one: %v", keys, err, refused)
		}
	}
	_, _, err := parse("version: 0.1\nproxy: {remoteurl: \"https://docker.io\", username: me, password: hush}\nhttp: {addr: \":5000\", insecure_open_to_network: true}\n")
	if err == nil || !strings.HasPrefix(err.Error(), "c.yml:2: proxy.insecure_open_to_anonymous: is missing") || strings.Contains(err.Error(), "hush") {
		t.Errorf("remoteurl: got error %v", err)
	}
}

func warnedOf(ws config.Warnings, key string) bool {
	for _, w := range ws {
		if w.Key == key {
			return true
		}
	}
	return false
}

func TestProxyWarnings(t *testing.T) {
	_, ws, err := parse(`version: 0.1
proxy:
  upstreams:
  - {name: a, url: "http://a.example.com", username: me, password: hush}
  - {name: b, url: "http://127.0.0.1:1", docker_config: /x, mirrors: ["http://mirror"]}
  - {name: c, url: "http://localhost", username: me, password: hush}
  - {name: d, tls: {insecure_skip_verify: true}, ttl: 0, stale_if_error: 0}
http: {addr: ":5000"}
auth: {htpasswd: {path: x}}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"c.yml:9 auth.htpasswd",
		"c.yml:7 proxy.upstreams[3].tls.insecure_skip_verify", "c.yml:7 proxy.upstreams[3].stale_if_error",
		"c.yml:4 proxy.upstreams[0]", "c.yml:5 proxy.upstreams[1]",
	}
	if d := cmp.Diff(want, warned(ws)); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestProxyRedacted(t *testing.T) {
	c, _, err := parse(`version: 0.1
proxy:
  upstreams: [{name: docker.io, username: me, password: hush1, http_proxy: "http://u:hush2@proxy:1"}]
  remoteurl: https://quay.io
  username: me
  password: hush3
`)
	if err != nil {
		t.Fatal(err)
	}
	if text := c.String(); strings.Contains(text, "hush") || !strings.Contains(text, "http_proxy: http://%2A%2A%2A%2A%2A%2A@proxy:1") {
		t.Errorf("the configuration shows a secret, or not what is around it:\n%s", text)
	}
}
