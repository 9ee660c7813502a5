package peers

import (
	"net"
	"net/http"
	"net/netip"
	"sync"

	"example.org/slipway/oci"
	"example.org/slipway/oci/peering"
)

const (
	// maxConns bounds the connections that this node accepts, and connsPerClient those from
	// one address. Anybody can open them, and each takes a file descriptor of the agent, which
	// serves the files of containers. Another node opens conns of them.
	maxConns, connsPerClient = 2048, 128
	// maxAsked bounds the requests that are answered or wait for their turn, each of which
	// takes up to 300 KB, and mostAsked those of one node. The end of a request that was
	// cancelled is noticed after the next one has begun.
	maxAsked, mostAsked = 512, 2 * conns
)

// doors counts who is in, so that nobody takes the room of all others.
type doors struct {
	mu      sync.Mutex
	all     map[net.Conn]netip.Addr
	clients map[netip.Addr]int
	// holders counts requests that are answered or wait for their turn, asked all of them.
	holders map[peering.Key]int
	asked   int
}

func newDoors() *doors {
	return &doors{all: map[net.Conn]netip.Addr{}, clients: map[netip.Addr]int{}, holders: map[peering.Key]int{}}
}

// changed is the ConnState of the server. It closes connections that are too many.
func (d *doors) changed(c net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		from := oci.ClientOf(c.RemoteAddr().String())
		if len(d.all) >= maxConns || d.clients[from] >= connsPerClient {
			_ = c.Close() // the server notices
			return
		}
		d.all[c] = from
		d.clients[from]++
	case http.StateClosed, http.StateHijacked:
		from, in := d.all[c]
		if !in {
			return
		}
		delete(d.all, c)
		if d.clients[from]--; d.clients[from] == 0 {
			delete(d.clients, from)
		}
	}
}

// enter notes a request, unless there are too many.
func (d *doors) enter(k peering.Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holders[k] >= mostAsked || d.asked >= maxAsked {
		return false
	}
	d.holders[k]++
	d.asked++
	return true
}

func (d *doors) leave(k peering.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked--
	if d.holders[k]--; d.holders[k] == 0 {
		delete(d.holders, k)
	}
}
