package manage

import (
	"example.org/slipway/oci/fleet"
	"example.org/slipway/web/format"
	"example.org/slipway/web/images"
)

// NodeRow is a row for a node.
type NodeRow struct {
	fleet.Node
	Containers, Lazy, Fetching int
	// Share is the share of the node's cache that is in use, or -1 without a limit.
	Share float64
	// Shares reports that the node exchanges files with others. Saved is the share that came
	// from other nodes of what it received.
	Shares bool
	Saved  float64
}

// NodeImage is a row for an image on a node.
type NodeImage struct {
	fleet.Image
	// Ref leads to the image's page. It is empty if the digest is invalid.
	Ref string
	// State says in a word how much of the image is there.
	State string
	Share float64
}

// NewNodeRow returns the row for a node.
func NewNodeRow(n fleet.Node) NodeRow {
	r := NodeRow{Node: n, Share: -1}
	if n.CacheLimit > 0 {
		r.Share = format.Share(n.CacheBytes, n.CacheLimit)
	}
	r.Shares = max(n.PeerBytes, n.RegistryBytes, n.SentBytes) > 0
	// Halves, as a node may claim numbers whose sum is too large.
	r.Saved = format.Share(n.PeerBytes/2, n.PeerBytes/2+n.RegistryBytes/2)
	for i := range n.Images {
		r.Containers += len(n.Images[i].Containers)
		if !n.Images[i].Complete {
			r.Lazy++
		}
		if n.Images[i].Background {
			r.Fetching++
		}
	}
	return r
}

// NewNodeImage returns the row for an image on a node.
func NewNodeImage(i fleet.Image) NodeImage {
	r := NodeImage{Image: i, Ref: images.DigestLink(i.Repo, i.Manifest), Share: format.Share(i.LocalBytes, i.Bytes)}
	switch {
	case i.Complete:
		r.State, r.Share = "complete", 1
	case i.Background:
		r.State = "fetching the rest"
	case i.Mode == "eager":
		r.State = "eager"
	default:
		r.State = "lazy"
	}
	return r
}
