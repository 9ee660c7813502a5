package web

import (
	"net/http"
	"slices"
	"sort"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/warm"
	"example.org/slipway/web/manage"
)

// Nodes gives access to what nodes report. *fleet.Book implements it.
type Nodes interface {
	// Nodes returns the current reports, by name.
	Nodes() []fleet.Node
	// Starts returns at most n of the last starts of an image, the newest first.
	Starts(repo string, manifests []string, n int) []fleet.Image
}

// nodesPage is how many nodes, or images of a node, are listed on a page.
const nodesPage = 100

// nodesData is what the page of nodes shows: all nodes, or the images of a single node.
type nodesData struct {
	Nodes []manage.NodeRow
	// Total is how many nodes there are. Last is the name behind which the next page
	// begins.
	Total int
	Last  string
	// Node is set if the page shows a single node.
	Node   *manage.NodeRow
	Images []manage.NodeImage
	More   int
	// Orders are the last orders that nodes have images.
	Orders []warm.Order
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
		row := manage.NewNodeRow(list[i])
		d.Node = &row
		for _, i := range row.Images[:min(len(row.Images), nodesPage)] {
			d.Images = append(d.Images, manage.NewNodeImage(i))
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
		d.Nodes = append(d.Nodes, manage.NewNodeRow(n))
	}
	if len(list) > nodesPage {
		d.Last = list[nodesPage-1].Name
	}
	q.show(http.StatusOK, "nodes", "Nodes", d)
	return nil
}
