package prefetch

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
)

// maxManifest is the largest manifest that is looked into, in bytes. One of 127 layers,
// which is the most that container engines take, has some 30 KB.
const maxManifest = 1 << 20

// contents is what a manifest names. Nobody may change it.
type contents struct {
	layers  []policy.Layer
	digests map[policy.Key]oci.Digest
	// children are the manifests of an index that have a platform.
	children []child
}

type child struct {
	digest   oci.Digest
	platform string
}

// digest returns that of a layer. Of a nil manifest none is known.
func (c *contents) digest(k policy.Key) (oci.Digest, bool) {
	if c == nil {
		return "", false
	}
	d, ok := c.digests[k]
	return d, ok
}

// keyOf is what the policies know a content by.
func keyOf(d oci.Digest) policy.Key {
	var b [16]byte
	_, text, _ := strings.Cut(string(d), ":")
	text = text[:min(len(text), 2*len(b))]
	_, _ = hex.Decode(b[:], []byte(text)) // of what is no digest any key will do
	return policy.Key(b)
}

// contents returns what a manifest names.
func (p *Prefetcher) contents(d oci.Digest, manifest []byte) *contents {
	p.parsedMu.Lock()
	c, ok := p.parsed.get(d)
	p.parsedMu.Unlock()
	if ok {
		return c
	}
	c = parse(manifest, p.o.Small)
	p.parsedMu.Lock()
	defer p.parsedMu.Unlock()
	p.parsed.put(d, c)
	return c
}

// parse reads a manifest or an index: what is above small bytes and kept here. What is
// neither, or too large, names nothing.
func parse(manifest []byte, small int64) *contents {
	c := &contents{}
	if len(manifest) > maxManifest {
		return c
	}
	var doc struct {
		Config    oci.Descriptor   `json:"config"`
		Layers    []oci.Descriptor `json:"layers"`
		Manifests []oci.Descriptor `json:"manifests"`
	}
	if json.Unmarshal(manifest, &doc) != nil {
		return c
	}
	for _, d := range append([]oci.Descriptor{doc.Config}, doc.Layers...) {
		if d.Size <= small || len(d.URLs) > 0 || d.Digest.Validate() != nil {
			continue
		}
		k := keyOf(d.Digest)
		if _, twice := c.digests[k]; twice {
			continue
		}
		if c.digests == nil {
			c.digests = make(map[policy.Key]oci.Digest, 1+len(doc.Layers))
		}
		c.digests[k] = d.Digest
		c.layers = append(c.layers, policy.Layer{Key: k, Size: d.Size})
	}
	for _, d := range doc.Manifests {
		// What has no platform, or an unknown one, is no image: attestations, say.
		if d.Platform == nil || d.Platform.OS == "" || d.Platform.OS == "unknown" || d.Digest.Validate() != nil {
			continue
		}
		pl := d.Platform
		c.children = append(c.children, child{d.Digest, strings.Join([]string{pl.OS, pl.Architecture, pl.Variant, pl.OSVersion}, "/")})
	}
	return c
}

// recent is a map that forgets what was neither put nor asked for while as many others
// were as it remembers for sure.
type recent[K comparable, V any] struct {
	limit    int
	now, old map[K]V
}

func newRecent[K comparable, V any](limit int) recent[K, V] {
	return recent[K, V]{limit: limit, now: map[K]V{}}
}

func (r *recent[K, V]) put(k K, v V) {
	if len(r.now) >= r.limit {
		r.old, r.now = r.now, make(map[K]V)
	}
	r.now[k] = v
}

func (r *recent[K, V]) get(k K) (V, bool) {
	if v, ok := r.now[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.put(k, v)
	}
	return v, ok
}
