package notify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.org/slipway/internal/reach"
	"example.org/slipway/registry/auth/patterns"
)

// Webhook is a webhook that administrators manage while the registry runs. It gets events
// of manifests and tags, and none of blobs.
type Webhook struct {
	// ID names the queue of the webhook. It is never used again, so a later webhook of the
	// same name does not get events of an earlier one.
	ID string
	// Name is unique.
	Name string
	// URL is where events are posted. It may contain credentials.
	URL    string
	Format Format
	// Events are the actions that it is told of: push, tag, delete or pull.
	Events []Action
	// Repositories are patterns of the repositories that it is told of. None means all.
	Repositories []string
	// Secret signs bodies unless it is empty.
	Secret string
	// Paused says that nothing is sent, and that events are not kept for it.
	Paused bool
	// Creator is who added it, or "".
	Creator string
	Created time.Time
}

// LogValue implements slog.LogValuer. It hides URL and secret.
func (h Webhook) LogValue() slog.Value { return slog.StringValue(h.Name) }

// String returns the name, so that printing a webhook shows neither URL nor secret.
func (h Webhook) String() string { return h.Name }

// Store keeps the webhooks that are managed while the registry runs. All methods may run
// concurrently; ctx bounds the call.
type Store interface {
	// Webhooks returns all webhooks, ordered by name.
	Webhooks(ctx context.Context) ([]Webhook, error)
	// AddWebhook adds a webhook. It returns an error if the name or the id is taken.
	AddWebhook(ctx context.Context, h Webhook) error
	// SetWebhook replaces the webhook with the same id, or returns ErrNoWebhook.
	SetWebhook(ctx context.Context, h Webhook) error
	// RemoveWebhook removes a webhook with the events that wait for it, or returns
	// ErrNoWebhook.
	RemoveWebhook(ctx context.Context, id string) error
}

// Change says what a webhook is to be. What is nil stays as it is, or gets its default in
// a new webhook.
type Change struct {
	Name   string  `json:"name"`
	URL    *string `json:"url,omitempty"`
	Format *Format `json:"format,omitempty"`
	// Events default to push, tag and delete.
	Events []Action `json:"events,omitzero"`
	// Repositories default to all. An empty list that is not nil means all.
	Repositories []string `json:"repositories,omitzero"`
	// Secret signs bodies; "" signs nothing, which is the default.
	Secret *string `json:"secret,omitempty"`
	Paused *bool   `json:"paused,omitempty"`
	// By is who changes it.
	By string `json:"by,omitempty"`
}

// LogValue implements slog.LogValuer. It hides URL and secret.
func (c Change) LogValue() slog.Value { return slog.StringValue(c.Name) }

// Verb returns "pause", "resume" or "change", as the change is called in the audit log.
func (c *Change) Verb() string {
	switch {
	case c.Paused == nil || c.URL != nil || c.Format != nil || c.Events != nil || c.Repositories != nil || c.Secret != nil:
		return "change"
	case *c.Paused:
		return "pause"
	}
	return "resume"
}

var (
	// ErrNoWebhook says that there is no webhook of a name that could be changed.
	ErrNoWebhook = errors.New("no such webhook")
	// ErrInvalid says that a webhook cannot be as it was asked for.
	ErrInvalid = errors.New("the webhook is not valid")
)

// ManagedActions returns the actions that a managed webhook can be told of.
func ManagedActions() []Action { return []Action{ActionPush, ActionTag, ActionDelete, ActionPull} }

// These bounds keep the list readable and the labels of metrics few.
const (
	maxWebhooks     = 100
	maxRepositories = 100
	maxURL          = 2048 // bytes
	maxSecret       = 1024 // bytes
)

// webhookName is what webhooks may be called. The name is a label of metrics.
var webhookName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// guardRule ends the errors of addresses that are not allowed.
const guardRule = "and a webhook that is not in the configuration may have one only in notifications.networks"

// apply returns the webhook as a change makes it.
func (c *Change) apply(h Webhook) Webhook {
	if c.URL != nil {
		h.URL = strings.TrimSpace(*c.URL)
	}
	if c.Format != nil {
		h.Format = *c.Format
	}
	if c.Events != nil {
		h.Events = c.Events
	}
	if c.Repositories != nil {
		h.Repositories = c.Repositories
	}
	if c.Secret != nil {
		h.Secret = *c.Secret
	}
	if c.Paused != nil {
		h.Paused = *c.Paused
	}
	return h
}

// check returns an error that wraps ErrInvalid. Its text has neither URL nor secret.
func (h *Webhook) check(guard *reach.Guard) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	u, err := url.Parse(h.URL)
	switch {
	case !webhookName.MatchString(h.Name):
		return bad("its name has to begin with a letter or digit, and to consist of at most 64 letters, digits, dots, dashes and underscores")
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || len(h.URL) > maxURL:
		return bad("its URL is not http://... or https://..., or is longer than %d bytes", maxURL)
	case len(h.Secret) > maxSecret:
		return bad("its secret is longer than %d bytes", maxSecret)
	case h.Format != FormatDocker && h.Format != FormatCloudEvents:
		return bad("format %.40q: want %s or %s", h.Format, FormatDocker, FormatCloudEvents)
	case len(h.Events) == 0:
		return bad("it is told of nothing; choose events")
	case len(h.Repositories) > maxRepositories:
		return bad("it has more than %d patterns of repositories", maxRepositories)
	}
	for _, a := range h.Events {
		if !slices.Contains(ManagedActions(), a) {
			return bad("event %.40q: want push, tag, delete or pull", a)
		}
	}
	if _, err := patterns.CompileAll(h.Repositories); err != nil {
		return bad("%v", err)
	}
	if err := guard.CheckURL(u); err != nil { // names are checked when they are looked up
		return bad("%v", err)
	}
	return nil
}

// managedEndpoint returns the endpoint of a webhook.
func (n *Notifier) managedEndpoint(h Webhook) (*endpoint, error) {
	cfg := Endpoint{Name: h.Name, URL: h.URL, Format: h.Format, Secret: h.Secret}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	match, err := patterns.CompileAll(h.Repositories)
	if err != nil {
		return nil, err
	}
	ep := newEndpoint(cfg, n.guarded)
	ep.queue, ep.hook, ep.match = ManagedQueue+h.ID, &h, match
	return ep, nil
}

// ManagedQueue is what the names of the queues of managed webhooks begin with. Their ids
// follow.
const ManagedQueue = "webhook/"

// AddWebhook adds a webhook, and returns its state. The error wraps ErrInvalid if there
// cannot be such a webhook.
func (n *Notifier) AddWebhook(ctx context.Context, c Change) (st EndpointStatus, err error) {
	n.changing.Lock()
	defer n.changing.Unlock()
	list, err := n.o.Store.Webhooks(ctx)
	if err != nil {
		return st, err
	}
	h := c.apply(Webhook{ID: strings.ToLower(rand.Text()), Name: c.Name, Format: FormatDocker, Events: []Action{ActionPush, ActionTag, ActionDelete},
		Creator: c.By, Created: n.o.Now().UTC().Truncate(time.Millisecond)})
	if err := h.check(n.guard); err != nil {
		return st, err
	}
	taken := func(o Webhook) bool { return o.Name == h.Name }
	switch {
	case n.configured(h.Name) || slices.ContainsFunc(list, taken):
		return st, fmt.Errorf("%w: there is one called %s already", ErrInvalid, h.Name)
	case len(list) >= maxWebhooks:
		return st, fmt.Errorf("%w: there are %d already, and no more can be added", ErrInvalid, len(list))
	}
	if err := n.o.Store.AddWebhook(ctx, h); err != nil {
		return st, fmt.Errorf("add webhook %s: %w", h.Name, err)
	}
	return n.changed(ctx, h.Name)
}

// ChangeWebhook changes a webhook, and returns its state. What waits for it is sent to its
// new URL. The error wraps ErrNoWebhook or ErrInvalid.
func (n *Notifier) ChangeWebhook(ctx context.Context, c Change) (st EndpointStatus, err error) {
	n.changing.Lock()
	defer n.changing.Unlock()
	old, err := n.stored(ctx, c.Name)
	if err != nil {
		return st, err
	}
	h := c.apply(old)
	if err := h.check(n.guard); err != nil {
		return st, err
	}
	if err := n.o.Store.SetWebhook(ctx, h); err != nil {
		return st, fmt.Errorf("change webhook %s: %w", h.Name, err)
	}
	return n.changed(ctx, h.Name)
}

// RemoveWebhook removes a webhook with the events that wait for it. The error wraps
// ErrNoWebhook.
func (n *Notifier) RemoveWebhook(ctx context.Context, name string) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	h, err := n.stored(ctx, name)
	if err != nil {
		return err
	}
	if err := n.o.Store.RemoveWebhook(ctx, h.ID); err != nil {
		return fmt.Errorf("remove webhook %s: %w", name, err)
	}
	return n.refresh(ctx)
}

// stored returns the managed webhook of a name.
func (n *Notifier) stored(ctx context.Context, name string) (Webhook, error) {
	list, err := n.o.Store.Webhooks(ctx)
	if err != nil {
		return Webhook{}, err
	}
	for _, h := range list {
		if h.Name == name {
			return h, nil
		}
	}
	if n.configured(name) {
		return Webhook{}, fmt.Errorf("%w to change: %s is in notifications.endpoints of the configuration; change it there, and restart the server", ErrNoWebhook, name)
	}
	return Webhook{}, fmt.Errorf("%w: %.80q", ErrNoWebhook, name)
}

// configured reports whether the configuration has a webhook of a name, even a disabled
// one.
func (n *Notifier) configured(name string) bool { return n.names[name] }

// changed reads the webhooks again, and returns the state of one.
func (n *Notifier) changed(ctx context.Context, name string) (EndpointStatus, error) {
	if err := n.refresh(ctx); err != nil {
		return EndpointStatus{}, err
	}
	for _, ep := range n.current() {
		if ep.hook != nil && ep.cfg.Name == name {
			return n.status(ctx, ep)
		}
	}
	return EndpointStatus{}, fmt.Errorf("%w: %s was removed meanwhile", ErrNoWebhook, name)
}

// Refresh reads the managed webhooks again. Other processes may have changed them.
func (n *Notifier) Refresh(ctx context.Context) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	return n.refresh(ctx)
}

func (n *Notifier) refresh(ctx context.Context) error {
	if n.o.Store == nil {
		return nil
	}
	list, err := n.o.Store.Webhooks(ctx)
	if err != nil {
		return fmt.Errorf("read the webhooks: %w", err)
	}
	before := n.current()
	now := slices.Clone(before[:n.fixed])
	same := true
	for _, h := range list {
		ep, err := n.endpointOf(h, before[n.fixed:])
		if err != nil { // another version of the program has stored it
			n.o.Logger.ErrorContext(ctx, "webhook cannot be used", "webhook", h.Name, "err", err)
			continue
		}
		same = same && slices.Contains(before, ep)
		now = append(now, ep)
	}
	if same && len(now) == len(before) {
		return nil
	}
	n.endpoints.Store(&now)
	for _, ep := range before {
		if !slices.ContainsFunc(now, func(o *endpoint) bool { return o.queue == ep.queue }) {
			n.pulls.forget(ep.queue)
		}
		if !slices.ContainsFunc(now, func(o *endpoint) bool { return o.cfg.Name == ep.cfg.Name }) {
			n.metrics.forget(ep.cfg.Name)
		}
	}
	select {
	case n.staffed <- struct{}{}:
	default:
	}
	return nil
}

// endpointOf returns the endpoint of a webhook: that of before if nothing has changed.
func (n *Notifier) endpointOf(h Webhook, before []*endpoint) (*endpoint, error) {
	i := slices.IndexFunc(before, func(ep *endpoint) bool { return ep.hook.ID == h.ID })
	if i >= 0 && reflect.DeepEqual(*before[i].hook, h) {
		return before[i], nil
	}
	ep, err := n.managedEndpoint(h)
	if err == nil && i >= 0 && before[i].cfg.URL == ep.cfg.URL {
		ep.outcomes = before[i].outcomes
	}
	return ep, err
}
