package prefetch

import "example.org/slipway/internal/policy"

// Advance does what Run does every second.
func (p *Prefetcher) Advance() { p.advance() }

// Decided is the account of the policy, as a simulation gives it.
func (p *Prefetcher) Decided() policy.PrefetchStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetched.Stats()
}

// Layers is how many layers and platforms a manifest has, as it is parsed.
func Layers(manifest []byte, small int64) (layers, children int) {
	c := parse(manifest, small)
	return len(c.layers), len(c.children)
}
