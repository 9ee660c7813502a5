package config_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/config"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/notify"
)

func TestEnvironment(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "scalars of both prefixes",
			env: []string{
				"REGISTRY_HTTP_ADDR=127.0.0.1:1", "REGISTRY_STORAGE_DELETE_ENABLED=true", "REGISTRY_LOG_LEVEL=debug",
				"REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY=/a", "SLIPWAY_STORAGE_ROOT=/b",
				"SLIPWAY_HTTP_RATELIMIT_REQUESTS_PER_SECOND=1.5", "SLIPWAY_STORAGE_GC_GRACE=2d", "SLIPWAY_STORAGE_MEMORY=1GiB",
				"SLIPWAY_STORAGE_RETENTION_INTERVAL=1h", "UNRELATED=x", "NOEQUALS",
			},
			want: func(c *config.Config) {
				c.HTTP.Addr, c.Storage.Delete.Enabled, c.Log.Level = "127.0.0.1:1", true, "debug"
				c.Storage.FileSystem.RootDirectory, c.HTTP.RateLimit.RequestsPerSecond = "/b", 1.5
				c.Storage.GC.Grace, c.Storage.Memory, c.Storage.RetentionInterval = 48*time.Hour, 1<<30, time.Hour
			},
		},
		{
			name: "ours outweighs Distribution's, whatever the order",
			env:  []string{"SLIPWAY_HTTP_ADDR=127.0.0.1:2", "REGISTRY_HTTP_ADDR=127.0.0.1:1"},
			want: func(c *config.Config) { c.HTTP.Addr = "127.0.0.1:2" },
		},
		{
			name: "lists: replace, append in the order of numbers, whole",
			text: "version: 0.1\nhttp: {tls: {certificate: /c, key: /k, clientcas: [/0, /1]}}\n",
			env: append(numbered("SLIPWAY_HTTP_TLS_CLIENTCAS_%d=/new%d", 1, 12),
				"REGISTRY_VALIDATION_MANIFESTS_URLS_ALLOW=[a, b]", "REGISTRY_VALIDATION_MANIFESTS_URLS_ALLOW_1=c"),
			want: func(c *config.Config) {
				c.HTTP.TLS.Certificate, c.HTTP.TLS.Key = "/c", "/k"
				c.HTTP.TLS.ClientCAs = append([]string{"/0"}, numbered("/new%d", 1, 12)...)
				c.Validation.Manifests.URLs.Allow = []string{"a", "c"}
			},
		},
		{
			name: "lists of sections",
			env: []string{
				"SLIPWAY_NOTIFICATIONS_ENDPOINTS_0_NAME=a", "SLIPWAY_NOTIFICATIONS_ENDPOINTS_0_URL=http://a",
				"SLIPWAY_NOTIFICATIONS_ENDPOINTS_0_HEADERS_X-KEY_0=v", "SLIPWAY_STORAGE_RETENTION_0_KEEP_PULLED_WITHIN=3d",
				"SLIPWAY_STORAGE_IMMUTABLE_TAGS=[{tags: [v1]}]",
			},
			want: func(c *config.Config) {
				c.Notifications.Endpoints = []notify.Endpoint{{
					Name: "a", URL: "http://a", Headers: http.Header{"X-Key": {"v"}},
				}}
				c.Storage.Retention = []config.Retention{{KeepPulledWithin: 72 * time.Hour}}
				c.Storage.ImmutableTags = []config.ImmutableTags{{Tags: []string{"v1"}}}
			},
		},
		{
			name: "references, and texts that look like YAML",
			env:  []string{"SLIPWAY_HTTP_SECRET=a${env:X}c", "X=b", "SLIPWAY_LOG_FIELDS_A=[*not: yaml", "SLIPWAY_LOG_FIELDS_B=$${env:X}"},
			want: func(c *config.Config) {
				c.HTTP.Secret = "abc"
				c.Log.Fields = map[string]string{"a": "[*not: yaml", "b": "${env:X}"}
			},
		},
	})
}

func TestEnvironmentSections(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "maps",
			text: "version: 0.1\nlog: {fields: {service: a}}\n",
			env: []string{
				"REGISTRY_LOG_FIELDS_SERVICE=b", "REGISTRY_LOG_FIELDS_DATA_CENTRE=c",
				"REGISTRY_HTTP_HEADERS_Access-Control-Allow-Origin=['*']",
			},
			want: func(c *config.Config) {
				c.Log.Fields = map[string]string{"service": "b", "data_centre": "c"}
				c.HTTP.Headers = http.Header{"Access-Control-Allow-Origin": {"*"}}
			},
		},
		{
			name: "a section by one word, over that of the file",
			text: "version: 0.1\nstorage: {s3: {bucket: b}, delete: {enabled: true}}\n",
			env:  []string{"REGISTRY_STORAGE=filesystem", "REGISTRY_AUTH=htpasswd", "REGISTRY_AUTH_HTPASSWD_PATH=/p", "REGISTRY_AUTH_HTPASSWD_REALM=r"},
			want: func(c *config.Config) {
				c.Storage.Delete.Enabled = true
				c.Auth.HTPasswd = &auth.HTPasswdConfig{Path: "/p", Realm: "r"}
			},
		},
		{
			name: "the word keeps the section of its name",
			text: "version: 0.1\nauth: {htpasswd: {path: /p}, token: {realm: x}}\n",
			env:  []string{"REGISTRY_AUTH=htpasswd"},
			want: func(c *config.Config) { c.Auth.HTPasswd = &auth.HTPasswdConfig{Path: "/p"} },
		},
		{
			name: "optional values and sections",
			env:  []string{"SLIPWAY_AUTH_TOKEN_BUILTIN=true", "SLIPWAY_AUTH_ACCESS_0_SUBJECTS_0=alice", "REGISTRY_STORAGE_INMEMORY="},
			want: func(c *config.Config) {
				on := true
				c.Auth.Token = &auth.TokenConfig{Builtin: &on}
				c.Auth.Access = []auth.Rule{{Subjects: []string{"alice"}}}
			},
		},
		{
			name: "empty means not set, but for texts",
			text: "version: 0.1\nhttp: {debug: {addr: '127.0.0.1:1'}, tls: {clientcas: []}}\n",
			env: []string{
				"REGISTRY_HTTP_DEBUG_ADDR=", "REGISTRY_HTTP_DRAINTIMEOUT=", "REGISTRY_HTTP_TLS_CLIENTCAS=", "REGISTRY_HTTP=",
				"REGISTRY_PROXY_REMOTEURL=",
			},
			want: func(*config.Config) {},
		},
	})
}

func TestForeignEnvironment(t *testing.T) {
	runFiles(t, []fileCase{
		{
			name: "what Kubernetes and others put there",
			env: []string{
				"REGISTRY_PORT=tcp://10.0.0.1:5000", "REGISTRY_SERVICE_HOST=10.0.0.1", "REGISTRY_SERVICE_PORT_HTTP=5000",
				"REGISTRY_PORT_5000_TCP_ADDR=10.0.0.1", "SLIPWAY_HTTP_SERVICE_HOST=10.0.0.2", "SLIPWAY_PASSWORD=hush",
				"REGISTRY_HTTP_ADR=:5000", "SLIPWAY_HTP_ADDR=:5000",
			},
			want: func(*config.Config) {},
			warned: []string{
				"environment variable REGISTRY_HTTP_ADR ", "environment variable SLIPWAY_HTP_ADDR ",
			},
		},
		{
			name:   "keys without meaning",
			env:    []string{"REGISTRY_REDIS_ADDR=redis:6379", "REGISTRY_STORAGE_CACHE_BLOBDESCRIPTOR=inmemory", "REGISTRY_LOGLEVEL=warn"},
			want:   func(c *config.Config) { c.Log.Level = "warn" },
			warned: []string{"environment variable REGISTRY_REDIS_ADDR redis"},
		},
		{
			name: "OpenTelemetry off by default",
			env:  []string{"OTEL_TRACES_EXPORTER=none"},
			want: func(*config.Config) {},
		},
		{
			name: "OpenTelemetry",
			env: []string{
				"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/", "OTEL_SERVICE_NAME=a",
				"SLIPWAY_TRACING_SERVICE_NAME=b",
			},
			want: func(c *config.Config) {
				c.Tracing.Enabled, c.Tracing.Endpoint, c.Tracing.ServiceName = true, "http://c:4318/v1/traces", "b"
			},
		},
		{
			name: "OpenTelemetry switched off over the file",
			text: "version: 0.1\ntracing: {enabled: true}\n",
			env:  []string{"OTEL_SDK_DISABLED=true", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://t", "OTEL_TRACES_EXPORTER=console"},
			want: func(c *config.Config) { c.Tracing.Endpoint = "http://t" },
			warned: []string{
				"environment variable OTEL_TRACES_EXPORTER ",
			},
		},
	})
}

// numbered formats each number from first to last.
func numbered(format string, first, last int) []string {
	var out []string
	for i := first; i <= last; i++ {
		out = append(out, strings.ReplaceAll(format, "%d", fmt.Sprint(i)))
	}
	return out
}

func TestEnvironmentProblems(t *testing.T) {
	for _, tc := range []struct{ text, env, want string }{
		{"", "SLIPWAY_HTTP_ADRR=x", "environment variable SLIPWAY_HTTP_ADRR: sets no key there is (did you mean SLIPWAY_HTTP_ADDR?)"},
		{"", "REGISTRY_HTTP_DRAINTIMEOUT=hush", "environment variable REGISTRY_HTTP_DRAINTIMEOUT: http.draintimeout: not a duration (like 30s, 5m, 12h or 7d)"},
		{"", "REGISTRY_PROXY_REMOTEURL=hush", "environment variable REGISTRY_PROXY_REMOTEURL: proxy.remoteurl: must be an http or https URL"},
		{"", "REGISTRY_STORAGE=gcs", "environment variable REGISTRY_STORAGE: storage.gcs: storage driver gcs is not in this version; the drivers are filesystem, s3, swift and inmemory"},
		{"", "REGISTRY_STORAGE=s3", "environment variable REGISTRY_STORAGE: storage.s3.bucket: is missing"},
		{"", "REGISTRY_STORAGE_S3AWS_CHUNKSIZE=hush", "environment variable REGISTRY_STORAGE_S3AWS_CHUNKSIZE: storage.s3.chunksize: not a size"},
		{"", "REGISTRY_AUTH=htpasswd", "environment variable REGISTRY_AUTH: auth.htpasswd.path: is missing"},
		{"", "SLIPWAY_HTTP_TLS_CLIENTCAS_1=x", "environment variable SLIPWAY_HTTP_TLS_CLIENTCAS_1: http.tls.clientcas[1]: cannot be set: what the key stands in has another form"},
		{"", "SLIPWAY_HTTP_TLS=[hush", "environment variable SLIPWAY_HTTP_TLS"},
		{"version: 0.1\nhttp: 5", "SLIPWAY_HTTP_ADDR=127.0.0.1:1", "environment variable SLIPWAY_HTTP_ADDR: http.addr: cannot be set: what the key stands in has another form\nc.yml:2: http: must be a section, not a single value"},
	} {
		_, _, err := parse(tc.text, tc.env)
		if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: got error %v, want %s", tc.env, err, tc.want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	layers := []struct {
		name string
		file string
		env  string
		flag string
	}{
		{name: "default"},
		{name: "file", file: "version: 0.1\nlog: {fields: {layer: file}}"},
		{name: "registry", env: "REGISTRY_LOG_FIELDS_LAYER=registry"},
		{name: "slipway", env: "SLIPWAY_LOG_FIELDS_LAYER=slipway"},
		{name: "flag", flag: "flag"},
	}
	var file string
	var env []string
	var overrides []config.Override
	for _, l := range layers {
		if l.file != "" {
			file = l.file
		}
		if l.env != "" {
			env = append(env, l.env)
		}
		if l.flag != "" {
			overrides = append(overrides, config.Override{Key: "log.fields.layer", Value: l.flag})
		}
		c, _, err := config.Parse(strings.NewReader(file), &config.Options{Env: env, Overrides: overrides})
		if err != nil {
			t.Fatal(err)
		}
		want := l.name
		if want == "default" {
			want = ""
		}
		if got := c.Log.Fields["layer"]; got != want {
			t.Errorf("with layers up to %s: got %q, want %q", l.name, got, want)
		}
	}
}

func TestOverrides(t *testing.T) {
	opts := &config.Options{Name: "c.yml", Env: []string{"SLIPWAY_STORAGE_ROOT=/env"}, Overrides: []config.Override{
		{Key: "storage.root", Value: "/flag", Source: "--root"},
		{Key: "http.tls.clientcas.1", Value: "/b"},
		{Key: "http.tls.clientcas.0", Value: "/a"},
		{Key: "http.tls", Value: "{certificate: /c, key: /k}"},
		{Key: "http.ratelimit.burst", Value: "3"},
	}}
	text := "version: 0.1\nstorage: {filesystem: {rootdirectory: /file}}"
	c, _, err := config.Parse(strings.NewReader(text), opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Storage.FileSystem.RootDirectory; got != "/flag" {
		t.Errorf("root directory: got %q, want /flag", got)
	}
	if d := cmp.Diff([]string{"/a", "/b"}, c.HTTP.TLS.ClientCAs); d != "" || c.HTTP.TLS.Key != "/k" || c.HTTP.RateLimit.Burst != 3 {
		t.Errorf("clientcas (-want +got):\n%s; tls %+v, rate limit %+v", d, c.HTTP.TLS, c.HTTP.RateLimit)
	}
	opts.Overrides = []config.Override{{Key: "http.adr", Value: "x", Source: "--adr"}, {Key: "log.level", Value: "x"}}
	_, _, err = config.Parse(strings.NewReader(text), opts)
	want := "--adr: unknown key http.adr\nflag: log.level: must be error, warn, info or debug"
	if err == nil || err.Error() != want {
		t.Errorf("wrong overrides: got error %v, want %s", err, want)
	}
}
