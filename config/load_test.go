package config_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.org/slipway/config"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/notify"
)

// noFiles is a ReadFile for tests that name no file.
func noFiles(path string) ([]byte, error) { return nil, fmt.Errorf("open %s: no such file", path) }

func parse(text string, env ...string) (*config.Config, config.Warnings, error) {
	return config.Parse(strings.NewReader(text), &config.Options{Name: "c.yml", Env: env, ReadFile: noFiles})
}

// diff compares configurations except for the origin of their values.
func diff(want, got *config.Config) string {
	return cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{}), cmpopts.EquateEmpty())
}

// warned lists the keys of the warnings.
func warned(ws config.Warnings) []string {
	var keys []string
	for _, w := range ws {
		keys = append(keys, w.Where+" "+w.Key)
	}
	return keys
}

// fileCase is a file that must be accepted.
type fileCase struct {
	name, text string
	env        []string
	want       func(c *config.Config) // turns the default into the expected configuration
	warned     []string               // "where key" of each warning
}

func runFiles(t *testing.T, cases []fileCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			got, ws, err := parse(tc.text, tc.env...)
			if err != nil {
				t.Fatalf("Parse: %v\n%s\n%q", err, tc.text, tc.env)
			}
			want := config.Default()
			tc.want(want)
			if d := diff(want, got); d != "" {
				t.Errorf("config (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.warned, warned(ws), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("warnings (-want +got):\n%s\n%v", d, ws)
			}
		})
	}
}

// TestDistributionFiles reads files like those in Distribution's documentation, in its
// images and in the charts of its users.
func TestDistributionFiles(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "v2 image",
			text: `version: 0.1
log: {fields: {service: registry}}
storage:
  cache: {blobdescriptor: inmemory}
  filesystem: {rootdirectory: /srv/registry}
http:
  addr: localhost:5000
  headers: {X-Content-Type-Options: [nosniff]}
health:
  storagedriver: {enabled: true, interval: 15s, threshold: 3}
`,
			want: func(c *config.Config) {
				c.Log.Fields = map[string]string{"service": "registry"}
				c.Storage.FileSystem.RootDirectory = "/srv/registry"
				c.HTTP.Addr = "localhost:5000"
				c.HTTP.Headers = http.Header{"X-Content-Type-Options": {"nosniff"}}
				c.Health.StorageDriver = config.StorageCheck{Enabled: true, Interval: 15 * time.Second, Threshold: 3}
			},
		},
		{
			name: "v3 development",
			text: `version: 0.1
log: {level: debug, accesslog: {disabled: true}, formatter: logstash}
storage:
  delete: {enabled: true}
  inmemory:
  tag: {concurrencylimit: 5}
  maintenance:
    uploadpurging: {enabled: false}
    readonly: {enabled: true}
http:
  addr: 127.0.0.1:5000
  net: tcp
  draintimeout: 15s
  h2c: {enabled: true}
  debug:
    addr: localhost:5001
    prometheus: {enabled: true, path: /metrics}
catalog: {maxentries: 50}
`,
			want: func(c *config.Config) {
				c.Log.Level, c.Log.Formatter, c.Log.AccessLog.Disabled = "debug", "logstash", true
				c.Storage.Delete.Enabled, c.Storage.InMemory = true, true
				c.Storage.Maintenance.UploadPurging.Enabled = false
				c.Storage.Maintenance.ReadOnly.Enabled = true
				c.HTTP.Addr, c.HTTP.DrainTimeout, c.HTTP.H2C.Enabled = "127.0.0.1:5000", 15*time.Second, true
				c.HTTP.Debug.Addr, c.HTTP.Debug.Prometheus.Enabled = "localhost:5001", true
				c.Catalog.MaxEntries = 50
			},
			warned: []string{"c.yml:6 storage.tag.concurrencylimit"},
		},
	})
}

func TestSecuredDistributionFile(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "TLS and passwords",
			text: `version: 0.1
loglevel: warn
storage: filesystem
auth:
  htpasswd: {realm: Our Registry, path: /etc/registry/htpasswd}
http:
  addr: :443
  secret: 12345
  host: https://registry.example.com
  tls:
    certificate: /tls/crt.pem
    key: /tls/key.pem
    clientcas: [/tls/ca.pem]
    clientauth: verify-client-cert-if-given
    minimumtls: tls1.3
  http2: {disabled: true}
`,
			want: func(c *config.Config) {
				c.Log.Level = "warn"
				c.Auth.HTPasswd = &auth.HTPasswdConfig{Realm: "Our Registry", Path: "/etc/registry/htpasswd"}
				c.HTTP.Addr, c.HTTP.Secret, c.HTTP.Host = ":443", "12345", "https://registry.example.com"
				c.HTTP.TLS = config.TLS{
					Certificate: "/tls/crt.pem", Key: "/tls/key.pem", ClientCAs: []string{"/tls/ca.pem"},
					ClientAuth: "verify-client-cert-if-given", MinimumTLS: "tls1.3",
				}
				c.HTTP.HTTP2.Disabled = true
			},
		},
	})
}

func TestOlderDistributionFiles(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "token service and what is left of older versions",
			text: `version: 0.1
log: {reportcaller: true, hooks: [{type: mail, disabled: true, levels: [panic]}]}
storage:
  filesystem: {rootdirectory: /storage, maxthreads: 100}
  cache: {layerinfo: redis, blobdescriptorsize: 5}
  redirect: {disable: true}
redis: {addr: "redis:6379", db: 2, password: hush}
reporting: {bugsnag: {apikey: ""}}
compatibility: {schema1: {enabled: true}}
proxy: {remoteurl: "", ttl: 168h}
middleware: {storage: []}
validation: {enabled: false}
http: {addr: ":5000"}
auth:
  token:
    realm: https://core.example.com/token
    service: our-registry
    issuer: our-issuer
    rootcertbundle: /etc/registry/root.crt
    signingalgorithms: [EdDSA, ES256]
`,
			want: func(c *config.Config) {
				c.Storage.FileSystem.RootDirectory, c.Storage.Redirect.Disable = "/storage", true
				c.HTTP.Addr, c.Proxy.TTL = ":5000", 168*time.Hour
				c.Auth.Token = &auth.TokenConfig{
					Realm: "https://core.example.com/token", Service: "our-registry", Issuer: "our-issuer",
					RootCertBundle: "/etc/registry/root.crt", SigningAlgorithms: []string{"EdDSA", "ES256"},
				}
			},
			warned: []string{
				"c.yml:2 log.reportcaller", "c.yml:4 storage.filesystem.maxthreads", "c.yml:5 storage.cache.layerinfo",
				"c.yml:5 storage.cache.blobdescriptorsize", "c.yml:7 redis", "c.yml:9 compatibility", "c.yml:12 validation.enabled",
			},
		},
	})
}

func TestDistributionLists(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "events, health and validation",
			text: `version: "0.1"
notifications:
  events: {includereferences: true}
  endpoints:
  - name: a
    url: https://a.example.com/events
    headers: {Authorization: [Bearer x]}
    timeout: 500ms
    threshold: 3
    backoff: 1000000000
    ignore: {mediatypes: [application/octet-stream], actions: [pull]}
  - {name: b, url: "http://b.example.com", format: CloudEvents, secret: s}
health:
  file: [{file: /tmp/down}]
  http: [{uri: "http://h.example.com/", statuscode: 204}]
  tcp: [{addr: "h.example.com:1", interval: 1m}]
validation:
  manifests:
    urls: {allow: ['^https://'], deny: ['^https://bad\.']}
    indexes: {platforms: List, platformlist: [{os: linux, architecture: amd64}]}
`,
			want: func(c *config.Config) {
				c.Notifications.Events.IncludeReferences = true
				c.Notifications.Endpoints = []notify.Endpoint{
					{
						Name: "a", URL: "https://a.example.com/events", Headers: http.Header{"Authorization": {"Bearer x"}},
						Timeout: 500 * time.Millisecond, Threshold: 3, Backoff: time.Second,
						Ignore: notify.Ignore{MediaTypes: []string{"application/octet-stream"}, Actions: []string{"pull"}},
					},
					{Name: "b", URL: "http://b.example.com", Format: notify.FormatCloudEvents, Secret: "s"},
				}
				c.Health.File = []config.FileCheck{{File: "/tmp/down", Interval: 10 * time.Second, Threshold: 1}}
				c.Health.HTTP = []config.HTTPCheck{{
					URI: "http://h.example.com/", StatusCode: 204, Timeout: 5 * time.Second, Interval: 10 * time.Second, Threshold: 1,
				}}
				c.Health.TCP = []config.TCPCheck{{Addr: "h.example.com:1", Timeout: 5 * time.Second, Interval: time.Minute, Threshold: 1}}
				m := &c.Validation.Manifests
				m.URLs = config.URLRules{Allow: []string{"^https://"}, Deny: []string{`^https://bad\.`}}
				m.Indexes = config.IndexRules{Platforms: "list", PlatformList: []config.Platform{{OS: "linux", Architecture: "amd64"}}}
			},
			warned: []string{"c.yml:10 notifications.endpoints[0].backoff"},
		},
		{
			name: "anchors and merges",
			text: `version: 0.1
health:
  tcp:
  - &t {addr: "a:1", interval: 1s, threshold: 2}
  - <<: *t
    addr: b:2
  - *t
`,
			want: func(c *config.Config) {
				check := config.TCPCheck{Addr: "a:1", Interval: time.Second, Threshold: 2, Timeout: 5 * time.Second}
				other := check
				other.Addr = "b:2"
				c.Health.TCP = []config.TCPCheck{check, other, check}
			},
		},
	})
}

func TestSmallFiles(t *testing.T) {
	runFiles(t, []fileCase{
		{name: "empty", text: "", want: func(*config.Config) {}},
		{name: "comments only", text: "# nothing\n---\n", want: func(*config.Config) {}},
		{name: "empty sections", text: "version: 0.1\nhttp:\nstorage:\nauth:\nlog: {fields: }\n", want: func(*config.Config) {}},
		{name: "JSON", text: `{"version": "0.1", "http": {"addr": "127.0.0.1:1"}}`, want: func(c *config.Config) { c.HTTP.Addr = "127.0.0.1:1" }},
	})
}

func TestOwnKeys(t *testing.T) {
	got, ws, err := parse(`version: 0.1
log:
  accesslog: {format: trace, file: /var/log/access}
  audit: {file: /var/log/audit}
storage:
  root: /data
  memory: 16MiB
  gc: {disabled: true, interval: 30m, grace: 2d, untagged: delete}
  immutable_tags: [{repositories: ["team/**"], tags: ['v[0-9]+']}]
  retention:
  - {repositories: ["ci/*"], keep_newest: 5, keep_tags: [main], keep_younger: 720h, keep_pulled_within: 1d12h}
  retention_interval: 6h
http:
  addr: 0.0.0.0:5000
  insecure_open_to_network: true
  ratelimit: {requests_per_second: 2.5, burst: 7, uploads: 3, max_connections: 9}
  limits: {manifest_bytes: 8mb, upload_sessions: 11, body_idle_timeout: 5s}
tracing:
  enabled: true
  endpoint: https://otel.example.com/v1/traces
  headers: {Authorization: hush}
  sample_ratio: 0.25
`)
	if err != nil || len(ws) > 0 {
		t.Fatalf("Parse: %v, warnings %v", err, ws)
	}
	want := config.Default()
	want.Log.AccessLog.Format, want.Log.AccessLog.File = "trace", "/var/log/access"
	want.Log.Audit.File = "/var/log/audit"
	s := &want.Storage
	s.FileSystem.RootDirectory, s.Memory = "/data", 16<<20
	s.GC = config.GC{Disabled: true, Interval: 30 * time.Minute, Grace: 48 * time.Hour, Untagged: "delete"}
	s.ImmutableTags = []config.ImmutableTags{{Repositories: []string{"team/**"}, Tags: []string{"v[0-9]+"}}}
	s.Retention = []config.Retention{{
		Repositories: []string{"ci/*"}, KeepNewest: 5, KeepTags: []string{"main"},
		KeepYounger: 720 * time.Hour, KeepPulledWithin: 36 * time.Hour,
	}}
	s.RetentionInterval = 6 * time.Hour
	want.HTTP.Addr, want.HTTP.InsecureOpenToNetwork = "0.0.0.0:5000", true
	want.HTTP.RateLimit = config.RateLimit{RequestsPerSecond: 2.5, Burst: 7, Uploads: 3, MaxConnections: 9}
	want.HTTP.Limits = config.Limits{ManifestBytes: 8 << 20, UploadSessions: 11, BodyIdleTimeout: 5 * time.Second, BodyMinRate: 1 << 10}
	want.Tracing.Enabled, want.Tracing.Endpoint = true, "https://otel.example.com/v1/traces"
	want.Tracing.Headers = map[string]config.Secret{"Authorization": "hush"}
	want.Tracing.SampleRatio = 0.25
	if d := diff(want, got); d != "" {
		t.Errorf("config (-want +got):\n%s", d)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yml")
	text := "version: 0.1\nhttp:\n  secret: ${file:" + secret + "}\n  hots: x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := config.Load(file, nil, nil)
	want := file + ":4: unknown key http.hots (did you mean http.host?)"
	if err == nil || err.Error() != want {
		t.Errorf("Load of a file with a typing error: got %v, want %s", err, want)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "hots: x", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(file, nil, nil)
	if err != nil || c.HTTP.Secret.Reveal() != "from a file" {
		t.Errorf("Load: got %v, %v; want the secret of the file", c, err)
	}
	if _, _, err := config.Load(filepath.Join(dir, "none"), nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of a missing file: got %v, want ErrNotExist", err)
	}
	c, _, err = config.Load("", []string{"SLIPWAY_STORAGE_ROOT=" + dir}, nil)
	if err != nil || c.Storage.FileSystem.RootDirectory != dir {
		t.Errorf("Load without a file: got %v, %v", c, err)
	}
}
