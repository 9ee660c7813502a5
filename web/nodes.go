package web

import (
	"net/http"
	"slices"
	"sort"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/warm"
	"example.org/slipway/web/format"
	"example.org/slipway/web/images"
)

// Nodes gives access to what nodes report. *fleet.Book implements it.
type Nodes interface {
	// Nodes returns the current reports, by name.
	Nodes() []fleet.Node
}

// nodesPage is how many nodes, or images of a node, are listed on a page.
const nodesPage = 100

// nodeRow is a row for a node.
type nodeRow struct {
	fleet.Node
	Containers, Lazy, Fetching int
	// Share is the share of the node's cache that is in use, or -1 without a limit.
	Share float64
}

// nodesData is what the page of nodes shows: all nodes, or the images of a single node.
type nodesData struct {
	Nodes []nodeRow
	// Total is how many nodes there are. Last is the name behind which the next page
	// begins.
	Total int
	Last  string
	// Node is set if the page shows a single node.
	Node   *nodeRow
	Images []imageRow
	More   int
	// Orders are the last orders that nodes have images.
	Orders []warm.Order
}

// imageRow is a row for an image on a node.
type imageRow struct {
	fleet.Image
	// Ref leads to the image's page. It is empty if the digest is invalid.
	Ref string
	// State says in a word how much of the image is there.
	State string
	Share float64
}

// nodes shows all nodes or, with ?node=, a single node.
func (q *request) nodes() error {
	if q.rest != "" {
		return notFound("There is no page of that name.")
	}
	d := &nodesData{}
	var list []fleet.Node
	if n := q.h.opts.System.Nodes; n != nil {
		list = n.Nodes()
	}
	d.Total = len(list)
	if name := q.r.FormValue("node"); name != "" {
		i := slices.IndexFunc(list, func(n fleet.Node) bool { return n.Name == name })
		if i < 0 {
			return notFound("No node of that name has reported lately.")
		}
		row := newNodeRow(list[i])
		d.Node = &row
		for _, i := range row.Images[:min(len(row.Images), nodesPage)] {
			d.Images = append(d.Images, newImageRow(i))
		}
		d.More = len(row.Images) - len(d.Images)
		q.show(http.StatusOK, "nodes", name, d)
		return nil
	}
	if orders := q.h.opts.System.Orders; orders != nil {
		all := orders(q.r.Context())
		d.Orders = all[:min(len(all), nodesPage)]
	}
	last := q.r.FormValue("last")
	from := sort.Search(len(list), func(i int) bool { return list[i].Name > last })
	list = list[from:]
	for _, n := range list[:min(len(list), nodesPage)] {
		d.Nodes = append(d.Nodes, newNodeRow(n))
	}
	if len(list) > nodesPage {
		d.Last = list[nodesPage-1].Name
	}
	q.show(http.StatusOK, "nodes", "Nodes", d)
	return nil
}

func newNodeRow(n fleet.Node) nodeRow {
	r := nodeRow{Node: n, Share: -1}
	if n.CacheLimit > 0 {
		r.Share = format.Share(n.CacheBytes, n.CacheLimit)
	}
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

func newImageRow(i fleet.Image) imageRow {
	r := imageRow{Image: i, Ref: images.DigestLink(i.Repo, i.Manifest), Share: format.Share(i.LocalBytes, i.Bytes)}
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
