package images

import (
	"slices"
	"sync"

	"example.org/slipway/agent/registries"
	"example.org/slipway/config"
	"example.org/slipway/oci"
)

// ways returns the ways in which an image may come to this node, in the order in which
// they are tried.
func ways(c *config.AgentChoice, ref registries.Reference) []string {
	for _, r := range c.Rules {
		if len(r.Images) == 0 {
			return r.Use
		}
		for _, p := range r.Images {
			if oci.MatchSegments(p, ref.Name()) {
				return r.Use
			}
		}
	}
	return c.Default
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
