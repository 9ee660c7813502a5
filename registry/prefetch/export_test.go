package prefetch

import "example.org/slipway/internal/policy"

// Advance does what Run does every second.
func (p *Prefetcher) Advance() { p.advance() }

// Decided returns the statistics of the policy, in the form of a simulation.
func (p *Prefetcher) Decided() policy.PrefetchStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetched.Stats()
}

// Layers returns how many layers and platforms a manifest has, as the prefetcher parses it.
func Layers(manifest []byte, small int64) (layers, children int) {
	c := parse(manifest, small)
	return len(c.layers), len(c.children)
}
