package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"time"

	"example.org/slipway/config/yamlfile"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/notify"
)

// Config is the whole configuration. Make one with Default, Parse or Load, because the
// zero value lacks the defaults.
//
// It shows no secret when it is printed, logged or marshalled: see Redacted.
type Config struct {
	Version       string         `yaml:"version" default:"0.1" enum:"0.1" doc:"Version of the format of this file. It must be the first key."`
	Log           Log            `yaml:"log" doc:"What is logged, in which form, and where."`
	Storage       Storage        `yaml:"storage" doc:"Where content is kept, for how long, and who may delete it."`
	Cluster       Cluster        `yaml:"cluster" doc:"Several servers with one catalogue and one object store. They work together as soon as they share both; this section lets them use each other's caches, too."`
	Proxy         Proxy          `yaml:"proxy" doc:"Mirrors of other registries, whose images are fetched when a client requests them, and kept."`
	Gear          Gear           `yaml:"gear" doc:"Conversion of images to Gear form: an index and files that are stored once."`
	Warm          Warm           `yaml:"warm" doc:"Images that nodes fetch before they start them (docs/warming.md)."`
	Volumes       Volumes        `yaml:"volumes" doc:"Images as block volumes in storage that nodes share. Nodes map them, and read blocks when they are touched."`
	Replication   []Replication  `yaml:"replication" doc:"Rules by which images are copied to and from other registries, regularly or as soon as they are pushed: docs/replication.md."`
	Signatures    []SignatureKey `yaml:"signatures" doc:"Public keys with which the page verifies signatures of images. It shows which key has signed an image; pushes and pulls do not depend on it."`
	HTTP          HTTP           `yaml:"http" doc:"The server that clients talk to."`
	Web           Web            `yaml:"web" doc:"The web page, at /ui/."`
	Auth          auth.Config    `yaml:"auth" doc:"Who may do what. If this section is empty, everything is allowed; then http.addr must be a loopback address, or http.insecure_open_to_network must be true."`
	Notifications Notifications  `yaml:"notifications" doc:"Who is notified of pushes, pulls and deletes."`
	Health        Health         `yaml:"health" doc:"Checks behind /readyz and /debug/health."`
	Validation    Validation     `yaml:"validation" doc:"What a manifest must satisfy to be accepted."`
	Catalog       Catalog        `yaml:"catalog" doc:"The list of repositories, /v2/_catalog."`
	Tracing       Tracing        `yaml:"tracing" doc:"OpenTelemetry traces. The standard OTEL_ variables are respected only when tracing is enabled here or by OTEL_TRACES_EXPORTER=otlp."`

	places yamlfile.Places
}

// Log configures logging. Operational lines go to standard error.
type Log struct {
	Level     string            `yaml:"level" default:"info" enum:"error|warn|info|debug" doc:"Least important line that is logged: error, warn, info or debug."`
	Formatter string            `yaml:"formatter" default:"text" enum:"text|json|logstash" doc:"Form of a log line: text, json or logstash."`
	Fields    map[string]string `yaml:"fields" doc:"Fields added to every log line." example:"environment: staging"`
	AccessLog AccessLog         `yaml:"accesslog" doc:"One line for each request."`
	Audit     Audit             `yaml:"audit" doc:"A separate log of logins, refusals, pushes and deletes."`
}

// SlogLevel returns the level for log/slog.
func (l *Log) SlogLevel() slog.Level {
	var lv slog.Level
	if err := lv.UnmarshalText([]byte(l.Level)); err != nil {
		return slog.LevelInfo // Validate refuses other values
	}
	return lv
}

// AccessLog configures the log of requests.
type AccessLog struct {
	Disabled bool   `yaml:"disabled" doc:"True writes no access log."`
	Format   string `yaml:"format" default:"clf" enum:"clf|trace|json" doc:"clf is the Combined Log Format. trace is one JSON object a line, with the ten fields of the published registry traces and the digest, if the answer had one; json is another name for trace."`
	File     string `yaml:"file" doc:"File to append to. Empty means standard output."`
}

// Audit configures the audit log.
type Audit struct {
	File string `yaml:"file" doc:"File to append to, created with mode 0600. Empty writes no audit log." example:"/var/log/slipway/audit.log"`
}

// Notifications configures events.
type Notifications struct {
	Events    Events            `yaml:"events" doc:"What an event holds."`
	Endpoints []notify.Endpoint `yaml:"endpoints" doc:"Where events are sent, each to every endpoint that does not ignore it. These cannot be changed at the page."`
	Networks  []string          `yaml:"networks" doc:"Private, loopback or link-local networks in which webhooks may be that administrators add at the page or with slipway webhook add. Public addresses need not be named." example:"10.0.0.0/8"`
}

// AllowedNetworks returns Networks as prefixes.
func (n *Notifications) AllowedNetworks() []netip.Prefix { return networks(n.Networks) }

// Events configures the content of events.
type Events struct {
	IncludeReferences bool `yaml:"includereferences" doc:"Lists in a manifest's event the blobs and manifests it refers to."`
	IncludeMirrored   bool `yaml:"includemirrored" doc:"Also sends push events for what mirrors fetch from their upstreams."`
}

// Health configures health checks.
type Health struct {
	StorageDriver StorageCheck `yaml:"storagedriver" doc:"Checks that the storage answers."`
	File          []FileCheck  `yaml:"file" doc:"Files whose existence makes the server unhealthy, to take it out of rotation by hand."`
	HTTP          []HTTPCheck  `yaml:"http" doc:"URLs that must answer a HEAD request."`
	TCP           []TCPCheck   `yaml:"tcp" doc:"Addresses that must accept a connection."`
}

// StorageCheck configures the check of the storage.
type StorageCheck struct {
	Enabled   bool          `yaml:"enabled" doc:"Runs the check."`
	Interval  time.Duration `yaml:"interval" default:"10s" min:"1ms" doc:"Time between two checks."`
	Threshold int           `yaml:"threshold" default:"1" min:"0" doc:"Failures in a row that make the server unhealthy. 0 means 1."`
}

// FileCheck configures a check for a file's existence.
type FileCheck struct {
	File      string        `yaml:"file" doc:"Path of the file." example:"/var/lib/registry/out-of-rotation"`
	Interval  time.Duration `yaml:"interval" default:"10s" min:"1ms" doc:"Time between two checks."`
	Threshold int           `yaml:"threshold" default:"1" min:"0" doc:"Failures in a row that make the server unhealthy. 0 means 1."`
}

// HTTPCheck configures a check of a URL.
type HTTPCheck struct {
	URI        string        `yaml:"uri" doc:"URL to ask." example:"https://backend.example.com/healthy"`
	Headers    http.Header   `yaml:"headers" secret:"true" doc:"Headers added to the request, each with a list of values."`
	StatusCode int           `yaml:"statuscode" default:"200" min:"100" doc:"Status that means healthy."`
	Timeout    time.Duration `yaml:"timeout" default:"5s" min:"0s" doc:"Longest time a check may take. 0 means no limit."`
	Interval   time.Duration `yaml:"interval" default:"10s" min:"1ms" doc:"Time between two checks."`
	Threshold  int           `yaml:"threshold" default:"1" min:"0" doc:"Failures in a row that make the server unhealthy. 0 means 1."`
}

// TCPCheck configures a check of an address.
type TCPCheck struct {
	Addr      string        `yaml:"addr" doc:"Address, HOST:PORT." example:"backend.example.com:6379"`
	Timeout   time.Duration `yaml:"timeout" default:"5s" min:"0s" doc:"Longest time a check may take. 0 means no limit."`
	Interval  time.Duration `yaml:"interval" default:"10s" min:"1ms" doc:"Time between two checks."`
	Threshold int           `yaml:"threshold" default:"1" min:"0" doc:"Failures in a row that make the server unhealthy. 0 means 1."`
}

// Validation configures what pushed manifests must satisfy.
type Validation struct {
	Disabled  bool              `yaml:"disabled" doc:"True switches off the rest of this section."`
	Manifests ManifestsChecking `yaml:"manifests" doc:"Checks of manifests."`
}

// ManifestsChecking configures the checks of manifests.
type ManifestsChecking struct {
	URLs    URLRules   `yaml:"urls" doc:"URLs of foreign layers. Without allow and deny a manifest may have any URL, because this server never fetches it."`
	Indexes IndexRules `yaml:"indexes" doc:"Whether the manifests that an index lists must exist."`
	Blobs   string     `yaml:"blobs" default:"all" enum:"all|none" doc:"With all, the config and every layer of a manifest must exist before the manifest is pushed. With none, they need not exist, so an image may be pushed that cannot be pulled."`
}

// URLRules are regular expressions for the URLs in manifests.
type URLRules struct {
	Allow []string `yaml:"allow" doc:"Regular expressions; each URL must match one of them."`
	Deny  []string `yaml:"deny" doc:"Regular expressions; no URL may match one of them."`
}

// IndexRules say which entries of an index must exist.
type IndexRules struct {
	Platforms    string     `yaml:"platforms" default:"all" enum:"all|none|list" doc:"With all, every manifest of an index must exist before the index is pushed. With none, no manifest need exist. With list, the manifests of the platforms in platformlist must exist."`
	PlatformList []Platform `yaml:"platformlist" doc:"The platforms for platforms: list."`
}

// Platform names a platform of an index.
type Platform struct {
	OS           string `yaml:"os" doc:"Operating system." example:"linux"`
	Architecture string `yaml:"architecture" doc:"Processor architecture." example:"amd64"`
}

// Catalog configures the list of repositories.
type Catalog struct {
	MaxEntries int `yaml:"maxentries" default:"1000" min:"1" doc:"Limit of repositories in one answer."`
}

// Tracing configures OpenTelemetry.
type Tracing struct {
	Enabled     bool              `yaml:"enabled" doc:"Sends traces by OTLP over HTTP."`
	Endpoint    string            `yaml:"endpoint" default:"http://localhost:4318/v1/traces" doc:"Full URL of the collector."`
	Headers     map[string]Secret `yaml:"headers" doc:"Headers added to each request to the collector." example:"Authorization: \"Bearer ${file:/run/secrets/collector}\""`
	SampleRatio float64           `yaml:"sample_ratio" default:"1" min:"0" doc:"Share of requests that are traced, from 0 to 1, if the client has not decided."`
	ServiceName string            `yaml:"service_name" default:"slipway" doc:"Name of this server in traces."`
	Timeout     time.Duration     `yaml:"timeout" default:"10s" min:"0s" doc:"Longest time sending may take."`
}

// Default returns the configuration that applies without a file: a registry on loopback
// that stores content in the file system. Each call returns a new one.
func Default() *Config {
	c := new(Config)
	yamlfile.SetDefaults(reflect.ValueOf(c).Elem())
	return c
}

// Redacted returns the configuration as a YAML file. Each secret, each header that is
// sent to another server and each password in a URL reads "******".
func (c Config) Redacted() ([]byte, error) {
	return yamlfile.RedactedYAML(reflect.ValueOf(c))
}

// String implements fmt.Stringer with Redacted.
func (c Config) String() string {
	b, err := c.Redacted()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// GoString implements fmt.GoStringer with Redacted.
func (c Config) GoString() string { return c.String() }

// LogValue implements slog.LogValuer with Redacted.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalYAML implements yaml.Marshaler with Redacted.
func (c Config) MarshalYAML() (any, error) {
	return yamlfile.RedactedNode(reflect.ValueOf(c), false), nil
}

// MarshalJSON implements json.Marshaler with Redacted.
func (c Config) MarshalJSON() ([]byte, error) {
	var x any
	if err := yamlfile.RedactedNode(reflect.ValueOf(c), false).Decode(&x); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return json.Marshal(x)
}
