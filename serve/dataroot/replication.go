package dataroot

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
	"example.org/slipway/registry"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/historyfacts"
	"example.org/slipway/registry/replication"
	"example.org/slipway/serve/mirrors"
)

// replicationSet are the rules of replication in use, each with what it was made of. The
// three lists have the same order.
type replicationSet struct {
	conf    []config.Replication
	rules   []replication.Rule
	remotes []*http.Transport
}

// openReplication opens the rules of replication. It connects to no registry yet.
func (r *Root) openReplication(o *Options) (err error) {
	if r.replicated, err = replicationRules(r.cfg, &replicationSet{}, r.log); err != nil {
		return err
	}
	ro := replication.Options{Rules: r.replicated.rules, Local: r.Quotas.Registry(r.Registry), Store: replicationStore{r.Catalog}, Mark: registry.Unnoticed,
		Mirrored: r.IsMirror, Enter: o.Enter, Stopping: o.Stopping, Logger: r.log,
		ID: func(ctx context.Context) string {
			id, _, err := r.Catalog.Settings.RegistryID(ctx)
			if err != nil {
				return "" // it is asked for again
			}
			return id
		},
		History: func(ctx context.Context, repo, tag string) ([]oci.TagChange, error) {
			list, err := historyfacts.History{DB: r.Catalog.DB}.Tag(ctx, repo, tag, tagChanges)
			if errors.Is(err, catalog.ErrNotFound) {
				return nil, nil
			}
			return list, err
		}}
	if r.Catalog.DB.Shared() {
		ro.Lease, ro.Unlease = r.Catalog.DB.Lease, r.Catalog.DB.Unlease
	}
	r.Replicator = replication.New(ro)
	return nil
}

// ReloadReplication replaces the rules of replication by those of a configuration, and
// reports whether they differ. Rules that are as they were go on. If one cannot be used,
// all stay as they were. Only one call may run at a time.
func (r *Root) ReloadReplication(cfg *config.Config) (changed bool, err error) {
	before := r.replicated
	now, err := replicationRules(cfg, before, r.log)
	if err != nil || slices.EqualFunc(now.remotes, before.remotes, func(a, b *http.Transport) bool { return a == b }) {
		return false, err
	}
	r.replicated = now
	r.Replicator.SetRules(now.rules)
	before.closeBut(now)
	return true, nil
}

// closeBut closes the connections of rules that others do not use.
func (s *replicationSet) closeBut(others *replicationSet) {
	for _, t := range s.remotes {
		if t != nil && !slices.Contains(others.remotes, t) {
			t.CloseIdleConnections()
		}
	}
}

// tagChanges is how many of the last changes of a tag are looked through.
const tagChanges = 100

// publish passes an event to the webhooks and to replication.
func (r *Root) publish(ctx context.Context, e registry.Event) error {
	err := r.Notify(ctx, e)
	if e.Blob || e.Mirrored || e.Action == registry.ActionPull {
		return err
	}
	return errors.Join(err, r.Replicator.OnEvent(ctx, replication.Event{Repo: e.Repo, Tag: e.Tag, Digest: e.Descriptor.Digest, Deleted: e.Action == registry.ActionDelete}))
}

// replicationRules translates the configured rules. Those that are as before are taken
// from there. The caller closes the connections.
func replicationRules(cfg *config.Config, before *replicationSet, log *slog.Logger) (*replicationSet, error) {
	now := &replicationSet{}
	for i := range cfg.Replication {
		c := &cfg.Replication[i]
		if j := slices.IndexFunc(before.conf, func(b config.Replication) bool { return reflect.DeepEqual(b, *c) }); j >= 0 {
			now.add(*c, before.rules[j], before.remotes[j])
			continue
		}
		rule := replication.Rule{Name: c.Name, Push: c.Direction == "push", URL: c.URL, Names: c.Listed(), Prefix: c.Prefix,
			OnPush: c.OnPush, Every: c.Every, Delete: c.Delete, Referrers: c.Referrers}
		transport, err := openRemoteRegistry(c, &rule, log)
		if err != nil {
			now.closeBut(before)
			return nil, cfg.Problem(fmt.Sprintf("replication[%d]", i), err.Error())
		}
		now.add(*c, rule, transport)
	}
	return now, nil
}

func (s *replicationSet) add(c config.Replication, rule replication.Rule, transport *http.Transport) {
	s.conf, s.rules, s.remotes = append(s.conf, c), append(s.rules, rule), append(s.remotes, transport)
}

// openRemoteRegistry completes a rule with its patterns and the other registry.
func openRemoteRegistry(c *config.Replication, rule *replication.Rule, log *slog.Logger) (*http.Transport, error) {
	var err error
	if rule.Match, err = patterns.CompileAll(c.Repositories); err != nil {
		return nil, fmt.Errorf("repositories: %w", err)
	}
	tags, err := config.CompileWhole(c.Tags)
	if err != nil {
		return nil, fmt.Errorf("tags: %w", err)
	}
	if len(tags) > 0 {
		rule.Tags = func(tag string) bool {
			return slices.ContainsFunc(tags, func(re *regexp.Regexp) bool { return re.MatchString(tag) })
		}
	}
	credential, err := mirrors.Credential(c.Remote(), log)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := wire.ClientTLS(c.TLS.CA, c.TLS.Certificate, c.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	tlsConfig.InsecureSkipVerify = c.TLS.InsecureSkipVerify
	transport := remoteTransport(tlsConfig, remoteSilence)
	remote, err := client.New(c.URL, &client.Options{Credential: credential, Transport: replication.Transport(transport), Logger: log})
	if err != nil {
		return transport, err
	}
	rule.Remote = remote
	rule.History = func(ctx context.Context, repo, tag string) ([]oci.TagChange, error) {
		return client.HistoryOf(remote, repo).Tag(ctx, tag)
	}
	return transport, nil
}

// remoteSilence is how long a remote registry may take no byte, or not answer after the last
// one. It is long because registries check and move large blobs before they answer. Without
// a bound, one that hangs would stop a rule for ever, and nobody would notice. The client
// bounds what it reads.
const remoteSilence = 15 * time.Minute

// remoteTransport returns the transport to a remote registry.
func remoteTransport(conf *tls.Config, silence time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second, ResponseHeaderTimeout: silence,
		DisableCompression: true, TLSClientConfig: conf,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return impatientConn{c, silence}, nil
		},
	}
}

// impatientConn is a connection that breaks if nothing can be written for a while.
type impatientConn struct {
	net.Conn
	silence time.Duration
}

// Write implements net.Conn.
func (c impatientConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// replicationStore keeps the state of the rules and their queues in the catalogue.
type replicationStore struct{ cat *catalog.Catalog }

var _ replication.Store = replicationStore{}

func replicationName(rule string) string { return "replication/" + rule }

// Load implements replication.Store.
func (s replicationStore) Load(ctx context.Context, rule string) ([]byte, error) {
	var value string
	err := s.cat.DB.Row(ctx, `SELECT value FROM settings WHERE name = ?`, []any{replicationName(rule)}, &value)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, nil
	}
	return []byte(value), err
}

// Save implements replication.Store.
func (s replicationStore) Save(ctx context.Context, rule string, state []byte) error {
	return s.cat.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, replicationName(rule), string(state))
		return err
	})
}

// Append implements replication.Store.
func (s replicationStore) Append(ctx context.Context, rule string, payload []byte) error {
	return s.cat.Queue.Append(ctx, replicationName(rule), payload)
}

// Next implements replication.Store.
func (s replicationStore) Next(ctx context.Context, rule string, n int) ([]replication.Item, error) {
	rows, err := s.cat.Queue.Next(ctx, replicationName(rule), n)
	items := make([]replication.Item, len(rows))
	for i, r := range rows {
		items[i] = replication.Item{ID: r.ID, Payload: r.Payload}
	}
	return items, err
}

// Delete implements replication.Store.
func (s replicationStore) Delete(ctx context.Context, ids ...int64) error {
	return s.cat.Queue.Delete(ctx, ids...)
}

// Len implements replication.Store.
func (s replicationStore) Len(ctx context.Context, rule string) (int, error) {
	return s.cat.Queue.Len(ctx, replicationName(rule))
}
