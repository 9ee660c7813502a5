package agent

import (
	"path"
	"strings"
	"sync"

	"example.org/slipway/client"
	"example.org/slipway/config"
)

// ways tells the ways in which an image is to come here, in the order in which
// they are tried.
func ways(c *config.AgentChoice, ref reference) []string {
	name := strings.Split(ref.host+"/"+ref.repo, "/")
	for _, r := range c.Rules {
		if len(r.Images) == 0 {
			return r.Use
		}
		for _, p := range r.Images {
			if matchParts(strings.Split(p, "/"), name) {
				return r.Use
			}
		}
	}
	return c.Default
}

// matchParts tells whether a name matches a pattern: ** stands for any number of
// parts, all else is as path.Match has it. It goes back to the last ** only, so it
// takes no more steps than both have parts, multiplied.
func matchParts(pattern, name []string) bool {
	pi, ni := 0, 0
	retry, taken := -1, 0
	for ni < len(name) {
		if pi < len(pattern) && pattern[pi] == "**" {
			pi++
			retry, taken = pi, ni
			continue
		}
		ok := false
		if pi < len(pattern) {
			ok, _ = path.Match(pattern[pi], name[ni]) // the configuration was checked
		}
		switch {
		case ok:
			pi++
			ni++
		case retry >= 0:
			taken++
			pi, ni = retry, taken
		default:
			return false
		}
	}
	for pi < len(pattern) && pattern[pi] == "**" {
		pi++
	}
	return pi == len(pattern)
}

// trusts tells why what a registry says of volumes is not believed; "" if it is.
// Who can change an answer on its way could have a node read any volume of the
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

// choices remember why images that are not known otherwise were unpacked in the
// ordinary way. The zero value is empty.
type choices struct {
	mu    sync.Mutex
	why   map[string][]string // by reference
	order []string            // the oldest first
}

// maxChoices bounds what is remembered.
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

func (c *choices) get(image string) ([]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	why, ok := c.why[image]
	return why, ok
}
