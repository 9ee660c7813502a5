// Package fleet keeps what nodes report about themselves: which images of a repository a
// node has, how much of them, and which containers run from them. An agent reports an
// image every [Interval] to the image's registry, with the right to pull the image. A
// node chooses its own name. While its reports count, only the client that sent them may
// report under that name. A client can fill only a part of a [Book].
//
// Reports are kept in memory, for [Lifetime]. Behind a load balancer each server has the
// reports that it received.
package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Interval is how often a node reports an image.
	Interval = 30 * time.Second
	// Lifetime is how long a report counts.
	Lifetime = 5 * time.Minute

	// maxReports and maxBytes bound a book. maxContainers bounds the containers of an
	// image. maxText bounds each text, in bytes. One client has at most maxShare of the
	// reports and of the bytes.
	maxReports    = 50_000
	maxShare      = 2 // half of them
	maxBytes      = 64 << 20
	maxContainers = 500
	maxText       = 512
)

// Report is what a node reports about an image. Sizes are in bytes.
type Report struct {
	// Node is the host's name, and Version is the agent's version. Tier says how the
	// agent mounts images.
	Node    string `json:"node"`
	Version string `json:"version,omitempty"`
	Tier    string `json:"tier,omitempty"`
	// CacheBytes is the size of the node's files of all images. CacheLimit is the limit
	// of that size; 0 means no limit.
	CacheBytes int64 `json:"cache_bytes"`
	CacheLimit int64 `json:"cache_limit"`
	// Image is the image's name on the node, and Manifest is its digest.
	Image    string `json:"image"`
	Manifest string `json:"manifest,omitempty"`
	// Files is the number of files with content. LocalFiles is how many of them are on
	// the node.
	Files      int   `json:"files"`
	LocalFiles int   `json:"local_files"`
	Bytes      int64 `json:"bytes"`
	LocalBytes int64 `json:"local_bytes"`
	// Mode says how the last start was done, such as "lazy" or "eager". It is "" if there
	// was none.
	Mode string `json:"mode,omitempty"`
	// Background reports that the rest is being fetched. Complete reports that everything
	// is there.
	Background bool `json:"background,omitempty"`
	Complete   bool `json:"complete,omitempty"`
	// Opens counts the opens that reached the agent. Errors counts the opens that failed.
	Opens      int64       `json:"opens"`
	Errors     int64       `json:"errors"`
	Containers []Container `json:"containers,omitempty"`
	// PeerBytes and RegistryBytes count the bytes of content that the node received from
	// other nodes and from registries since the agent began, of images that other nodes
	// use. SentBytes counts the bytes that it sent to other nodes. They are of all images.
	PeerBytes     int64 `json:"peer_bytes,omitempty"`
	RegistryBytes int64 `json:"registry_bytes,omitempty"`
	SentBytes     int64 `json:"sent_bytes,omitempty"`
	// Start is the last start of the image. A report without one leaves the start of the
	// report before it.
	Start *Start `json:"start,omitempty"`
}

// Container runs from an image.
type Container struct {
	ID      string    `json:"id"`
	Started time.Time `json:"started"`
}

// check returns an error for a report that no agent would send.
func (r *Report) check() error {
	texts := []string{r.Node, r.Version, r.Tier, r.Image, r.Manifest, r.Mode}
	for i := range r.Containers {
		texts = append(texts, r.Containers[i].ID)
	}
	for _, s := range texts {
		if len(s) > maxText || strings.ContainsFunc(s, control) {
			return fmt.Errorf("%.40q... is too long or no text", s)
		}
	}
	switch {
	case r.Node == "" || r.Image == "":
		return fmt.Errorf("a report names its node and its image")
	case len(r.Containers) > maxContainers:
		return fmt.Errorf("a report has at most %d containers", maxContainers)
	case r.Files < 0 || r.LocalFiles < 0 || r.Bytes < 0 || r.LocalBytes < 0 || r.CacheBytes < 0 || r.CacheLimit < 0 || r.Opens < 0 || r.Errors < 0 ||
		r.PeerBytes < 0 || r.RegistryBytes < 0 || r.SentBytes < 0:
		return fmt.Errorf("a report counts from 0 on")
	case r.Start != nil:
		return r.Start.check()
	}
	return nil
}

// control reports whether a character is a control character of ASCII.
func control(c rune) bool { return c < ' ' || c == 0x7f }

// Node is what one node reported recently.
type Node struct {
	Name, Version, Tier    string
	CacheBytes, CacheLimit int64
	// PeerBytes, RegistryBytes and SentBytes are those of the last report.
	PeerBytes, RegistryBytes, SentBytes int64
	// Seen is when the node's last report came.
	Seen time.Time
	// Images by name.
	Images []Image
}

// Image is a report and the repository it is about.
type Image struct {
	Report
	Repo   string
	Seen   time.Time
	client string
}

// Book keeps reports. NewBook makes one. It is safe for concurrent use.
type Book struct {
	clock func() time.Time

	mu      sync.Mutex
	reports map[key]Image
	bytes   int // of all reports without their starts
	starts  int // bytes of all starts
	// clients holds the load of each client. owners holds the client of each node.
	clients map[string]load
	owners  map[string]owner
}

// load is what a client has in a book.
type load struct{ reports, bytes, starts int }

// owner is the client that sent a node's reports, and how many there are.
type owner struct {
	client  string
	reports int
}

type key struct{ node, repo, image string }

// NewBook returns an empty book. If clock is nil, time.Now is used.
func NewBook(clock func() time.Time) *Book {
	if clock == nil {
		clock = time.Now
	}
	return &Book{clock: clock, reports: map[key]Image{}, clients: map[string]load{}, owners: map[string]owner{}}
}

// Add notes a client's report about an image of a repository. It replaces the node's last
// one. It returns an error if the report is invalid, if the node belongs to another
// client, or if there are too many reports.
func (b *Book) Add(client, repo string, r *Report) error {
	if err := r.check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := key{r.Node, repo, r.Image}
	i := Image{Report: *r, Repo: repo, Seen: b.clock(), client: client}
	if b.foreign(&i) {
		if b.expire(); b.foreign(&i) {
			return fmt.Errorf("node %.40q is reported by another client", r.Node)
		}
	}
	if b.full(k, &i) {
		if b.expire(); b.full(k, &i) {
			return fmt.Errorf("there is no room for more: %d images of nodes are reported already", len(b.reports))
		}
	}
	if old, known := b.reports[k]; known && i.Start == nil && old.Manifest == i.Manifest {
		i.Start = old.Start
	}
	b.drop(k)
	if own, n := b.clients[client].starts, i.Start.bytes(); n > 0 && (b.starts+n > maxStartBytes || own+n > maxStartBytes/maxShare) {
		i.Start = nil
	}
	b.reports[k] = i
	b.count(&i, 1)
	return nil
}

// foreign reports whether the node of a report is another client's.
func (b *Book) foreign(i *Image) bool {
	o, known := b.owners[i.Node]
	return known && o.client != i.client
}

// count adds a report to the counts n times; n is 1 or -1.
func (b *Book) count(i *Image, n int) {
	b.bytes += n * i.bytes()
	l, o := b.clients[i.client], b.owners[i.Node]
	l.reports, l.bytes, l.starts = l.reports+n, l.bytes+n*i.bytes(), l.starts+n*i.Start.bytes()
	b.starts += n * i.Start.bytes()
	o.client, o.reports = i.client, o.reports+n
	b.clients[i.client], b.owners[i.Node] = l, o
	if l.reports == 0 {
		delete(b.clients, i.client)
	}
	if o.reports == 0 {
		delete(b.owners, i.Node)
	}
}

// full reports whether there is no room for a report that replaces the node's last one.
func (b *Book) full(k key, i *Image) bool {
	old, known := b.reports[k]
	more := i.bytes()
	if known {
		more -= old.bytes()
	}
	own := b.clients[i.client]
	return !known && (len(b.reports) >= maxReports || own.reports >= maxReports/maxShare) ||
		more > 0 && (b.bytes+more > maxBytes || own.bytes+more > maxBytes/maxShare)
}

// drop forgets a report.
func (b *Book) drop(k key) {
	if old, known := b.reports[k]; known {
		b.count(&old, -1)
		delete(b.reports, k)
	}
}

// bytes returns about how much memory a report takes without its start.
func (i *Image) bytes() int {
	n := 430 + 2*len(i.Node) + 2*len(i.Repo) + 2*len(i.Report.Image) + len(i.Version) + len(i.Tier) + len(i.Manifest) + len(i.Mode)
	for k := range i.Containers {
		n += 48 + len(i.Containers[k].ID)
	}
	return n
}

// expire drops what is out of date. The caller holds mu.
func (b *Book) expire() {
	before := b.clock().Add(-Lifetime)
	for k, r := range b.reports {
		if r.Seen.Before(before) {
			b.drop(k)
		}
	}
}

// Nodes returns the nodes whose reports count now, by name.
func (b *Book) Nodes() []Node {
	b.mu.Lock()
	b.expire()
	images := make([]Image, 0, len(b.reports))
	for _, r := range b.reports {
		images = append(images, r)
	}
	b.mu.Unlock()
	slices.SortFunc(images, func(x, y Image) int {
		return cmp.Or(cmp.Compare(x.Node, y.Node), cmp.Compare(x.Image, y.Image), cmp.Compare(x.Repo, y.Repo))
	})
	var nodes []Node
	for _, i := range images {
		if len(nodes) == 0 || nodes[len(nodes)-1].Name != i.Node {
			nodes = append(nodes, Node{Name: i.Node})
		}
		n := &nodes[len(nodes)-1]
		n.Images = append(n.Images, i)
		if i.Seen.After(n.Seen) { // of the newest report
			n.Seen, n.Version, n.Tier, n.CacheBytes, n.CacheLimit = i.Seen, i.Version, i.Tier, i.CacheBytes, i.CacheLimit
			n.PeerBytes, n.RegistryBytes, n.SentBytes = i.PeerBytes, i.RegistryBytes, i.SentBytes
		}
	}
	return nodes
}
