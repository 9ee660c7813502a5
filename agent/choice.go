package agent

import (
	"slices"
	"strings"
	"sync"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// ways returns the ways in which an image may come to this node, in the order in which
// they are tried.
func ways(c *config.AgentChoice, ref reference) []string {
	name := ref.host + "/" + ref.repo
	for _, r := range c.Rules {
		if len(r.Images) == 0 {
			return r.Use
		}
		for _, p := range r.Images {
			if oci.MatchSegments(p, name) {
				return r.Use
			}
		}
	}
	return c.Default
}

// trusts returns why a registry is not trusted about volumes, or "" if it is trusted.
// Somebody who can change an answer in transit could make a node use any volume of the
// storage as the root of a container.
func trusts(settings []config.AgentRegistry, host string) string {
	for i := range settings {
		r := &settings[i]
		if r.Host != host {
			continue
		}
		if r.InsecureSkipVerify {
			return "its certificate is not verified (insecure_skip_verify), so it is not believed"
		}
		for _, u := range r.URLs {
			at, plain := strings.CutPrefix(u, "http://")
			at, _, _ = strings.Cut(at, "/")
			if plain && !client.IsLoopback(at) {
				return "it is reached in the clear, so it is not believed"
			}
		}
		return ""
	}
	if client.IsLoopback(host) {
		return ""
	}
	return "it is not among the agent's registries, and records of volumes are believed of those only"
}

// choices remembers why images were unpacked in the ordinary way, if nothing else records
// it. The zero value is empty.
type choices struct {
	mu    sync.Mutex
	why   map[string][]string // by reference
	order []string            // the oldest first
}

// maxChoices bounds how many images are remembered.
const maxChoices = 1000

func (c *choices) put(image string, why []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		c.why = map[string][]string{}
	}
	if _, ok := c.why[image]; !ok {
		if len(c.order) >= maxChoices {
			delete(c.why, c.order[0])
			c.order = c.order[1:]
		}
		c.order = append(c.order, image)
	}
	c.why[image] = why
}

// drop forgets an image that now comes in another way.
func (c *choices) drop(image string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.why[image]; ok {
		delete(c.why, image)
		c.order = slices.DeleteFunc(c.order, func(s string) bool { return s == image })
	}
}

func (c *choices) get(image string) ([]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	why, ok := c.why[image]
	return why, ok
}
