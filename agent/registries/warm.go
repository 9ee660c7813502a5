package registries

import (
	"context"
	"errors"
	"slices"
	"strings"

	"example.org/slipway/config"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/warm"
)

// AskWarm asks a registry what this node shall fetch. It asks only a registry that offers
// Gear, because others need not know this node's name. Errors: UNSUPPORTED if it does not,
// or knows no orders.
func (r *Set) AskWarm(ctx context.Context, host string, p *warm.Poll) (a warm.Answer, err error) {
	reg, err := r.Of(Reference{Host: host})
	if err != nil {
		return a, err
	}
	err = reg.try(ctx, func(at *place) error {
		err := at.gear.Check(ctx)
		if errors.Is(err, gearclient.ErrNoGear) {
			return oci.Errorf(oci.CodeUnsupported, "%v", err)
		}
		if err == nil {
			a, err = warm.Ask(ctx, client.Extensions{Client: at.reg}, p)
		}
		return err
	})
	return a, err
}

// Hosts returns the registries of the settings.
func (r *Set) Hosts() (hosts []string) {
	for i := range r.settings {
		hosts = append(hosts, r.settings[i].Host)
	}
	return hosts
}

// Named returns the image that containers would name for a repository at the first place of
// a registry. ok is false if the repository is another registry's there: of several
// registries at one place, the one with the longest prefix has it.
func (r *Set) Named(host, repo string) (name string, ok bool) {
	s := r.setting(host)
	name, ok = strings.CutPrefix(repo, s.Prefix)
	if !ok || name == "" {
		return "", false
	}
	others := slices.ContainsFunc(r.settings, func(o config.AgentRegistry) bool {
		return o.Host != host && o.URLs[0] == s.URLs[0] && len(o.Prefix) > len(s.Prefix) && strings.HasPrefix(repo, o.Prefix)
	})
	return host + "/" + name, !others
}
