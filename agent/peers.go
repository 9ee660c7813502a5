package agent

import (
	"context"
	"net"
	"time"

	"example.org/slipway/agent/peers"
	"example.org/slipway/node/gearfs"
)

// withPeers returns a dialer whose sources get files from other nodes, too, if that is
// configured.
func (a *Agent) withPeers(dial gearfs.Dialer) (gearfs.Dialer, error) {
	c := &a.cfg.Peers
	if a.listeners.Peers == nil {
		return dial, nil
	}
	port := 0
	if at, ok := a.listeners.Peers.Addr().(*net.TCPAddr); ok {
		port = at.Port
	}
	var err error
	a.peers, err = peers.New(&peers.Options{Advertise: c.Advertise, Zone: c.Zone, Rack: c.Rack, UploadRate: int64(c.UploadRate), Uploads: c.Uploads,
		Announce: a.regs.Announce, Logger: a.log}, port)
	if err != nil {
		return nil, err
	}
	return a.peers.Dial(dial), nil
}

// usedEvery is how often the exchange is told which images this node has.
const usedEvery = 2 * time.Second

// tellPeers tells the exchange which images this node has, until ctx ends.
func (a *Agent) tellPeers(ctx context.Context) {
	tick := time.NewTicker(usedEvery)
	defer tick.Stop()
	for {
		images := map[gearfs.SourceRef]bool{}
		for _, img := range a.files.Images() {
			if len(img.Sources) > 0 {
				others, known := images[img.Sources[0]] // of other layers
				images[img.Sources[0]] = img.Complete && (others || !known)
			}
		}
		a.peers.Using(images)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
