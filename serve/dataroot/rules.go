package dataroot

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"regexp"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/patterns"
	"example.org/slipway/registry/quota"
	"example.org/slipway/registry/retention"
	"example.org/slipway/registry/signatures"
	"example.org/slipway/serve/mirrors"
)

// missingPlatforms returns a function that reports whether a manifest of an index may be
// missing.
func missingPlatforms(rules config.IndexRules) func(string, oci.Descriptor) bool {
	switch rules.Platforms {
	case "none":
		return func(string, oci.Descriptor) bool { return true }
	case "list":
		return func(_ string, d oci.Descriptor) bool {
			for _, p := range rules.PlatformList {
				if d.Platform != nil && d.Platform.OS == p.OS && d.Platform.Architecture == p.Architecture {
					return false
				}
			}
			return true
		}
	}
	return nil
}

// newQuotas returns the quotas of a registry, or nil if there are none.
func newQuotas(list []config.Quota, source quota.Source, log *slog.Logger) (*quota.Limits, error) {
	var out []quota.Quota
	for i, q := range list {
		match, err := patterns.CompileAll(q.Repositories)
		if err != nil {
			return nil, fmt.Errorf("storage.quotas[%d]: %w", i, err)
		}
		out = append(out, quota.Quota{Repositories: q.Repositories, Match: match, Bytes: int64(q.Bytes), Tags: int64(q.Tags), Warn: cmp.Or(q.Warn, quotaWarning)})
	}
	return quota.New(out, source, log), nil
}

// newMeter returns what counts the contents of namespaces, or nil if there are none.
func newMeter(list []config.Namespace, source quota.Source, log *slog.Logger) (*quota.Meter, error) {
	var out []quota.Namespace
	for i, n := range list {
		match, err := patterns.CompileAll(n.Repositories)
		if err != nil {
			return nil, fmt.Errorf("storage.namespaces[%d]: %w", i, err)
		}
		out = append(out, quota.Namespace{Repositories: n.Repositories, Match: match})
	}
	return quota.NewMeter(out, source, log), nil
}

// quotaWarning is the share of a quota from which on there is a warning by default.
const quotaWarning = 0.8

// foreignURLs returns a function that reports whether a layer may name a URL as its
// external location. Without rules every URL is allowed, because nothing here ever fetches
// it.
func foreignURLs(rules config.URLRules) (func(string) bool, error) {
	if len(rules.Allow) == 0 && len(rules.Deny) == 0 {
		return nil, nil
	}
	compile := func(key string, exprs []string) ([]*regexp.Regexp, error) {
		var list []*regexp.Regexp
		for _, e := range exprs {
			re, err := regexp.Compile(e)
			if err != nil {
				return nil, fmt.Errorf("validation.manifests.urls.%s: %w", key, err)
			}
			list = append(list, re)
		}
		return list, nil
	}
	allow, err := compile("allow", rules.Allow)
	if err != nil {
		return nil, err
	}
	deny, err := compile("deny", rules.Deny)
	if err != nil {
		return nil, err
	}
	return func(u string) bool {
		return (len(allow) == 0 || anyMatches(allow, u)) && !anyMatches(deny, u)
	}, nil
}

// retentionRules translates the configured rules.
func retentionRules(rules []config.Retention) ([]retention.Rule, error) {
	var list []retention.Rule
	for i, c := range rules {
		tags, err := config.CompileWhole(c.KeepTags)
		if err != nil {
			return nil, fmt.Errorf("storage.retention.%d.keep_tags: %w", i, err)
		}
		repos, err := patterns.CompileAll(c.Repositories)
		if err != nil {
			return nil, fmt.Errorf("storage.retention.%d.repositories: %w", i, err)
		}
		list = append(list, retention.Rule{Repositories: repos, KeepNewest: c.KeepNewest, KeepTags: tags,
			KeepYounger: c.KeepYounger, KeepPulledWithin: c.KeepPulledWithin})
	}
	return list, retention.Check(list)
}

func anyMatches(list []*regexp.Regexp, s string) bool {
	for _, re := range list {
		if re.MatchString(s) {
			return true
		}
	}
	return false
}

// SignatureKeys reads the configured keys for signatures. It returns nil if there are none.
func SignatureKeys(cfg *config.Config) (*signatures.Verifier, error) {
	var keys []signatures.Key
	for i, k := range cfg.Signatures {
		at := fmt.Sprintf("signatures[%d]", i)
		match, err := patterns.CompileAll(k.Repositories)
		if err != nil {
			return nil, cfg.Problem(at+".repositories", err.Error())
		}
		pem, err := os.ReadFile(k.Key)
		if err != nil {
			return nil, cfg.Problem(at+".key", err.Error())
		}
		if _, err := signatures.New([]signatures.Key{{Name: k.Name, PEM: pem}}); err != nil {
			return nil, cfg.Problem(at+".key", err.Error())
		}
		keys = append(keys, signatures.Key{Name: k.Name, PEM: pem, Match: match})
	}
	return signatures.New(keys)
}

// Check compiles the rules of a configuration and opens the files that its data root needs, to check
// them. It changes nothing.
func Check(cfg *config.Config) error {
	if _, err := registryOptions(cfg, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if _, err := retentionRules(cfg.Storage.Retention); err != nil {
		return err
	}
	if _, err := clusterTLS(&cfg.Cluster); err != nil {
		return err
	}
	if _, err := SignatureKeys(cfg); err != nil {
		return err
	}
	if _, err := replicationRules(cfg, &replicationSet{}, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	return mirrors.Check(cfg)
}
