package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
)

// problemCase is a file that must be refused. Its text follows "version: 0.1
// ", so it begins in line 2.
type problemCase struct {
	name, text string
	want       []string
}

// runProblems checks that each problem names its place and its key, and that all are
// reported at once. The files use "hush" for what a message must not show.
func runProblems(t *testing.T, cases []problemCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := parse("version: 0.1\n" + tc.text)
			var ps config.Problems
			if !errors.As(err, &ps) {
				t.Fatalf("got error %v, want Problems", err)
			}
			if d := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("the error shows a value: %v", err)
			}
		})
	}
}

func TestUnknownKeys(t *testing.T) {
	runProblems(t, []problemCase{
		{"typing errors", "htp: {}\nhttp:\n  adr: x\n  tls: {certificat: a}\nstorage: {filesystem: {rootdir: /x}}", []string{
			"c.yml:2: unknown key htp (did you mean http?)",
			"c.yml:4: unknown key http.adr (did you mean http.addr?)",
			"c.yml:5: unknown key http.tls.certificat (did you mean http.tls.certificate?)",
			"c.yml:6: unknown key storage.filesystem.rootdir",
		}},
		{"in a list", "notifications: {endpoints: [{name: a, url: 'http://a', timeuot: 1s}]}", []string{
			"c.yml:2: unknown key notifications.endpoints[0].timeuot (did you mean notifications.endpoints[0].timeout?)",
		}},
		{"misplaced", "relativeurls: true", []string{"c.yml:2: unknown key relativeurls (did you mean http.relativeurls?)"}},
		{"nothing like it", "zzzzzzzz: 1", []string{"c.yml:2: unknown key zzzzzzzz"}},
		{"twice", "http: {}\nhttp: {}", []string{"c.yml:3: http: the key stands twice in one section, first in line 2"}},
	})
}

func TestWrongTypes(t *testing.T) {
	runProblems(t, []problemCase{
		{"wrong types", `http:
  draintimeout: soon
  relativeurls: perhaps
  headers: {X-A: b}
  tls: [a]
  addr: {host: a}
  limits: {manifest_bytes: 4 apples, upload_sessions: many}
  ratelimit: {requests_per_second: .inf, burst: 1.5}`, []string{
			"c.yml:3: http.draintimeout: not a duration (like 30s, 5m, 12h or 7d)",
			"c.yml:4: http.relativeurls: must be true or false",
			"c.yml:5: http.headers.X-A: must be a list, not a single value",
			"c.yml:6: http.tls: must be a section, not a list",
			"c.yml:7: http.addr: must be a single value, not a section",
			"c.yml:8: http.limits.manifest_bytes: not a size (like 8mb, 200MiB or a number of bytes)",
			"c.yml:8: http.limits.upload_sessions: must be a whole number",
			"c.yml:9: http.ratelimit.requests_per_second: must be a number",
			"c.yml:9: http.ratelimit.burst: must be a whole number",
		}},
	})
}

func TestKeysNotHere(t *testing.T) {
	runProblems(t, []problemCase{
		{"not here", `storage:
  oss: {bucket: b, secretkey: hush}
  azure:
middleware: {storage: [{name: redirect}]}
policy: {repository: {classes: [image]}}
auth: {silly: {}}
http: {tls: {letsencrypt: {email: me@example.com}}}`, []string{
			"c.yml:3: storage.oss: storage driver oss is not in this version; the drivers are filesystem, s3, swift and inmemory",
			"c.yml:4: storage.azure: storage driver azure is not in this version; the drivers are filesystem, s3, swift and inmemory",
			"c.yml:5: middleware: middleware is not supported; without it clients would reach other content, or other hosts, than meant",
			"c.yml:6: policy: repository class policies are not supported, and leaving them out would accept what they forbid",
			"c.yml:7: auth.silly: the silly provider checks no password and is not supported; use htpasswd or token",
			"c.yml:8: http.tls.letsencrypt: certificates are not fetched from Let's Encrypt in this version; give http.tls.certificate and http.tls.key, or let a proxy in front do it",
		}},
	})
}

func TestWrongValues(t *testing.T) {
	runProblems(t, []problemCase{
		{"values", `log: {level: loud, formatter: xml}
http:
  addr: localhost
  net: udp
  prefix: a
  host: example.com
  debug: {addr: "x:y", prometheus: {path: m}}
  tls: {ciphersuites: [ROT13]}
  limits: {manifest_bytes: 1, body_idle_timeout: -1s}
  ratelimit: {burst: -1}
  trusted_proxies: [10.0.0.1, 10.0.0.0/8, "fd00::/8", unix, proxy.example.com, 10.0.0.0/40, "fe80::1%eth0"]
storage:
  root: ""
  memory: -1
  gc: {grace: 1s, untagged: burn}
  immutable_tags: [{repositories: ["A/*", "a//b"], tags: ["["]}]
  retention: [{repositories: ["/a"], keep_tags: ["(hush"], keep_newest: -3}]
catalog: {maxentries: -1}
notifications: {endpoints: [{}, {name: a, url: "ftp://x"}, {name: a, url: "http://x", format: xml, timeout: -1s}]}
health: {file: [{}], http: [{}], tcp: [{addr: x}]}
validation: {manifests: {urls: {allow: ["a{2,1}"], deny: ["*"]}, indexes: {platforms: some}}}
tracing: {enabled: true, endpoint: "", sample_ratio: 2}
auth: {access: [{repositories: [B], subjects: [a], actions: [pull]}]}`, []string{
			"c.yml:2: log.level: must be error, warn, info or debug",
			"c.yml:2: log.formatter: must be text, json or logstash",
			"c.yml:15: storage.memory: must be at least 0",
			"c.yml:16: storage.gc.untagged: must be keep or delete",
			"c.yml:18: storage.retention[0].keep_newest: must be at least 0",
			"c.yml:5: http.net: must be tcp or unix",
			"c.yml:11: http.ratelimit.burst: must be at least 0",
			"c.yml:10: http.limits.manifest_bytes: must be at least 1KiB",
			"c.yml:10: http.limits.body_idle_timeout: must be at least 1s",
			"c.yml:20: notifications.endpoints[2].timeout: must be at least 0s",
			"c.yml:20: notifications.endpoints[2].format: must be empty, docker or cloudevents",
			"c.yml:22: validation.manifests.indexes.platforms: must be all, none or list",
			"c.yml:19: catalog.maxentries: must be at least 1",
			"c.yml:4: http.addr: must be HOST:PORT",
			"c.yml:6: http.prefix: must begin and end with a slash",
			"c.yml:7: http.host: must be an http or https URL",
			"c.yml:8: http.debug.addr: must end with a port from 0 to 65535",
			"c.yml:8: http.debug.prometheus.path: must begin with a slash",
			"c.yml:12: http.trusted_proxies[4]: must be an address (192.0.2.1), a network (10.0.0.0/8) or unix",
			"c.yml:12: http.trusted_proxies[5]: must be an address (192.0.2.1), a network (10.0.0.0/8) or unix",
			"c.yml:12: http.trusted_proxies[6]: must be an address (192.0.2.1), a network (10.0.0.0/8) or unix",
			"c.yml:9: http.tls.ciphersuites[0]: is not a known cipher suite",
			"c.yml:14: storage.filesystem.rootdirectory: must not be empty",
			"c.yml:16: storage.gc.grace: must be at least 5m, or the blobs of running pushes would go",
			"c.yml:17: storage.immutable_tags[0].repositories[0]: matches no repository: it has a character that no repository name has",
			"c.yml:17: storage.immutable_tags[0].repositories[1]: matches no repository: a part between slashes is empty",
			"c.yml:17: storage.immutable_tags[0].tags[0]: is not a regular expression: missing closing ]",
			"c.yml:18: storage.retention[0].repositories[0]: matches no repository: a part between slashes is empty",
			"c.yml:18: storage.retention[0].keep_tags[0]: is not a regular expression: missing closing )",
			"c.yml:21: health.file[0].file: is missing",
			"c.yml:21: health.http[0].uri: is missing",
			"c.yml:21: health.tcp[0].addr: must be HOST:PORT",
			"c.yml:20: notifications.endpoints[0].name: is missing",
			"c.yml:20: notifications.endpoints[0].url: is missing",
			"c.yml:20: notifications.endpoints[1].url: must be an http or https URL",
			"c.yml:20: notifications.endpoints[2].name: is the name of another endpoint too",
			"c.yml:22: validation.manifests.urls.allow[0]: is not a regular expression: invalid repeat count",
			"c.yml:22: validation.manifests.urls.deny[0]: is not a regular expression: missing argument to repetition operator",
			"c.yml:23: tracing.endpoint: is missing",
			"c.yml:23: tracing.sample_ratio: must be between 0 and 1",
			"c.yml:24: auth.access[0].repositories[0]: matches no repository: it has a character that no repository name has",
		}},
	})
}

func TestRelations(t *testing.T) {
	runProblems(t, []problemCase{
		{"what belongs together", `http:
  addr: :5000
  tls: {certificate: /c}
storage: {inmemory: , filesystem: {}, retention: [{}]}
validation: {manifests: {indexes: {platforms: list}}}`, []string{
			"c.yml:4: http.tls.key: is missing: http.tls.certificate alone gives no encryption",
			"c.yml:3: http.addr: is reachable from other machines, and nobody is asked for a password: configure auth, or listen on 127.0.0.1, or say http.insecure_open_to_network: true (SLIPWAY_HTTP_INSECURE_OPEN_TO_NETWORK=true)",
			"c.yml:5: storage.filesystem: stands beside storage.inmemory: choose one storage driver",
			"c.yml:5: storage.retention[0]: keeps nothing, so it would remove every tag: set one of its keep_ keys",
			"c.yml:6: validation.manifests.indexes.platformlist: is missing: platforms: list needs it",
		}},
		{"methods without means", "auth: {htpasswd: , mtls: {}}\nhttp: {tls: {clientcas: [/ca]}}", []string{
			"c.yml:3: http.tls.clientcas: needs http.tls.certificate and http.tls.key: there are no client certificates without TLS",
			"c.yml:2: auth.htpasswd.path: is missing",
		}},
		{"another name that differs", "storage: {root: /a, filesystem: {rootdirectory: /b}}", []string{
			"c.yml:2: storage.root: means the same as storage.filesystem.rootdirectory, and they differ",
		}},
	})
}

func TestUnreadable(t *testing.T) {
	runProblems(t, []problemCase{
		{"references", "http:\n  secret: ${file:/none}\n  host: ${env:NONE}\n  prefix: ${file:/x", []string{
			"c.yml:3: http.secret: read the file it names: open /none: no such file",
			"c.yml:4: http.host: environment variable NONE is not set",
			"c.yml:5: http.prefix: ${file: or ${env: without a closing brace",
		}},
		{"not YAML", "http: [", []string{"c.yml:3: not valid YAML: did not find expected node content"}},
		{"unknown anchor", "http: {secret: *hush}", []string{"c.yml:2: not valid YAML: unknown or misplaced anchor"}},
		{"key is a list", "[a]: b", []string{"c.yml:2: a key must be a single word"}},
		{"merge of a value", "http: {<<: a}", []string{`c.yml:2: "<<" must name a section, or a list of sections`}},
	})
}

func TestVersion(t *testing.T) {
	for text, want := range map[string]string{
		"http: {}":       `c.yml:1: version: is missing: begin the file with "version: 0.1"`,
		"version: 0.2":   "c.yml:1: version: must be 0.1",
		"version: [0.1]": "c.yml:1: version: must be a single value, not a list",
		"- a":            "c.yml:1: must be a section, not a list",
		"a":              "c.yml:1: must be a section, not a single value",
	} {
		if _, _, err := parse(text); err == nil || err.Error() != want {
			t.Errorf("Parse(%q): got error %v, want %s", text, err, want)
		}
	}
}

// TestOpenToNetwork checks which addresses are allowed without authentication.
func TestOpenToNetwork(t *testing.T) {
	const tls = "tls: {certificate: /c, key: /k, clientcas: [/ca]"
	for _, tc := range []struct {
		name, http, rest string
		ok               bool
	}{
		{"all interfaces", "addr: ':5000'", "", false},
		{"IPv6", "addr: '[2001:db8::1]:5000'", "", false},
		{"a name", "addr: 'registry:5000'", "", false},
		{"said in so many words", "addr: ':5000', insecure_open_to_network: true", "", true},
		{"loopback", "addr: '127.0.0.2:5000'", "", true},
		{"IPv6 loopback", "addr: '[::1]:5000'", "", true},
		{"localhost", "addr: 'localhost:5000'", "", true},
		{"socket", "net: unix, addr: /run/registry.sock", "", true},
		{"passwords", "addr: ':5000'", "auth: {htpasswd: {path: /p}}", true},
		{"rules", "addr: ':5000'", "auth: {access: [{subjects: [anonymous], actions: [pull]}]}", true},
		{"client certificates", "addr: ':5000', " + tls + "}", "", true},
		{"client certificates if given", "addr: ':5000', " + tls + ", clientauth: verify-client-cert-if-given}", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := parse("version: 0.1\nhttp: {" + tc.http + "}\n" + tc.rest)
			if (err == nil) != tc.ok {
				t.Errorf("got error %v, want accepted = %v", err, tc.ok)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	_, ws, err := parse(`version: 0.1
auth: {htpasswd: {path: /p}}
http:
  addr: :5000
  debug: {addr: ":5001"}
  tls: {minimumtls: tls1.0, ciphersuites: [TLS_RSA_WITH_RC4_128_SHA]}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"c.yml:5 http.debug.addr", "c.yml:2 auth.htpasswd",
		"c.yml:6 http.tls.ciphersuites[0]", "c.yml:6 http.tls.minimumtls",
	}
	if d := cmp.Diff(want, warned(ws)); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestValidateByHand(t *testing.T) {
	c := config.Default()
	if err := c.Validate(); err != nil {
		t.Errorf("Default is not valid: %v", err)
	}
	c.HTTP.Addr, c.Log.Level = ":5000", "loud"
	want := "log.level: must be error, warn, info or debug\nhttp.addr: is reachable"
	if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Validate: got %v, want %s...", err, want)
	}
}
