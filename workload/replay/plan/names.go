package plan

import (
	"encoding/hex"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/workload/replay/content"
	"example.org/slipway/workload/trace/store"
)

// names makes valid names from the names in the trace.
type names struct {
	src    Source
	prefix string
	repos  map[store.Symbol]string
}

func newNames(src Source, prefix string) *names {
	return &names{src: src, prefix: prefix, repos: map[store.Symbol]string{}}
}

// repo returns the name of a repository: its name in the trace behind the prefix, or a
// name made from its hash if that is not valid.
func (n *names) repo(sym store.Symbol) string {
	if s, ok := n.repos[sym]; ok {
		return s
	}
	raw := n.src.Name(store.Repos, sym)
	s := n.prefix + raw
	if !oci.ValidName(s) {
		s = fmt.Sprintf("%srepo-%016x", n.prefix, content.Key(raw))
	}
	n.repos[sym] = s
	return s
}

// tag returns a manifest's tag, or "" if it is requested by digest.
func (n *names) tag(ref store.Symbol) string {
	raw := n.src.Name(store.Refs, ref)
	switch {
	case oci.IsDigest(raw):
		return ""
	case oci.ValidTag(raw):
		return raw
	}
	return fmt.Sprintf("tag-%016x", content.Key(raw))
}

// digestName writes a SHA-256 as the protocol does.
func digestName(d [32]byte) string {
	b := make([]byte, 7+64)
	copy(b, "sha256:")
	hex.Encode(b[7:], d[:])
	return string(b)
}
