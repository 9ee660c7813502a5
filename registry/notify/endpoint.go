package notify

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Format is how events are encoded.
type Format string

// The formats.
const (
	// FormatDocker is the envelope of Distribution's notifications, with one
	// event in it.
	FormatDocker Format = "docker"
	// FormatCloudEvents is one CloudEvents 1.0 event as structured JSON.
	FormatCloudEvents Format = "cloudevents"
)

// Endpoint is the configuration of a webhook, in the shape of Distribution's
// configuration.
type Endpoint struct {
	// Name is unique and names the endpoint's queue.
	Name     string `yaml:"name"`
	Disabled bool   `yaml:"disabled,omitempty"`
	// URL is where events are posted.
	URL string `yaml:"url"`
	// Headers are added to every request.
	Headers http.Header `yaml:"headers,omitempty"`
	// Timeout bounds one request; 0 means 5 s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	// Threshold is how many deliveries in a row may fail and be retried at once; 0 means
	// 10.
	Threshold int `yaml:"threshold,omitempty"`
	// Backoff is the first wait after that; 0 means 1 s. Each further wait is twice as
	// long, plus or minus half, up to Options.MaxBackoff.
	Backoff time.Duration `yaml:"backoff,omitempty"`
	// IgnoredMediaTypes is the older name of Ignore.MediaTypes.
	IgnoredMediaTypes []string `yaml:"ignoredmediatypes,omitempty"`
	// Ignore names events that are not delivered.
	Ignore Ignore `yaml:"ignore,omitempty"`

	// Format defaults to FormatDocker.
	Format Format `yaml:"format,omitempty"`
	// Secret, if set, signs each body. The header X-Slipway-Signature is "sha256=" and
	// the HMAC-SHA256 of the body in hex.
	Secret string `yaml:"secret,omitempty"`
}

// Ignore selects events by the target's media type and by action.
type Ignore struct {
	MediaTypes []string `yaml:"mediatypes,omitempty"`
	Actions    []string `yaml:"actions,omitempty"`
}

const (
	defaultTimeout   = 5 * time.Second
	defaultThreshold = 10
	defaultBackoff   = time.Second
)

// LogValue implements slog.LogValuer. It hides URL, headers and secret, because they are
// credentials.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.Name) }

// check fills in defaults, and returns an error for a configuration that cannot work. Its
// errors do not contain the URL.
func (e *Endpoint) check() error {
	u, err := url.Parse(e.URL)
	switch {
	case e.Name == "":
		return errors.New("it has no name")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("its url is not http://... or https://...")
	case e.Timeout < 0 || e.Threshold < 0 || e.Backoff < 0:
		return errors.New("timeout, threshold and backoff cannot be negative")
	}
	if e.Timeout == 0 {
		e.Timeout = defaultTimeout
	}
	if e.Threshold == 0 {
		e.Threshold = defaultThreshold
	}
	if e.Backoff == 0 {
		e.Backoff = defaultBackoff
	}
	switch e.Format {
	case "":
		e.Format = FormatDocker
	case FormatDocker, FormatCloudEvents:
	default:
		return fmt.Errorf("format %q: want %s or %s", e.Format, FormatDocker, FormatCloudEvents)
	}
	return nil
}

// wants reports whether an event is to be delivered.
func (e *Endpoint) wants(ev Event) bool {
	if slices.Contains(e.Ignore.Actions, string(ev.Action)) {
		return false
	}
	return ev.MediaType == "" || !slices.Contains(e.Ignore.MediaTypes, ev.MediaType) && !slices.Contains(e.IgnoredMediaTypes, ev.MediaType)
}
