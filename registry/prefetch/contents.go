package prefetch

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"example.org/slipway/internal/policy"
	"example.org/slipway/oci"
)

// maxManifest is the size in bytes of the largest manifest that is parsed. A manifest
// with 127 layers, the most that container engines accept, has some 30 KB.
const maxManifest = 1 << 20

// contents is what a manifest names. It must not be changed.
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

// digest returns the digest of a layer. A nil manifest knows none.
func (c *contents) digest(k policy.Key) (oci.Digest, bool) {
	if c == nil {
		return "", false
	}
	d, ok := c.digests[k]
	return d, ok
}

// keyOf returns the key by which the policies know a content.
func keyOf(d oci.Digest) policy.Key {
	var b [16]byte
	_, text, _ := strings.Cut(string(d), ":")
	text = text[:min(len(text), 2*len(b))]
	_, _ = hex.Decode(b[:], []byte(text)) // any key will do for an invalid digest
	return policy.Key(b)
}

// contents returns the contents that a manifest names.
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

// parse reads a manifest or an index. It returns the named contents that are larger than
// small bytes and stored here. It returns none if the bytes are neither a manifest nor an
// index, or are too many.
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
		// Without a platform, or with an unknown one, it is not an image but, say, an
		// attestation.
		if d.Platform == nil || d.Platform.OS == "" || d.Platform.OS == "unknown" || d.Digest.Validate() != nil {
			continue
		}
		pl := d.Platform
		c.children = append(c.children, child{d.Digest, strings.Join([]string{pl.OS, pl.Architecture, pl.Variant, pl.OSVersion}, "/")})
	}
	return c
}

// recent is a map that forgets old entries. It remembers at least the last limit entries
// that were put or read.
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
