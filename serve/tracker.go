package serve

import (
	"crypto/ed25519"
	"fmt"
	"path/filepath"

	"example.org/slipway/registry/auth/signing"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/tracker"
)

// peerKeyFile is the file of the data directory with the key that signs grants of nodes. It
// is not the key of tokens, because nodes hand grants to each other.
const peerKeyFile = "peers.key"

// introducePeers has the server introduce nodes to each other.
func (s *Server) introducePeers(so *server.Options) error {
	if !s.cfg.Gear.Peers {
		return nil
	}
	path := ""
	if s.root.Dir != "" {
		path = filepath.Join(s.root.Dir, peerKeyFile)
	}
	keys, err := signing.LoadKeys("key for grants of nodes", path, s.log)
	if err != nil {
		return err
	}
	private, ok := keys[0].Private.(ed25519.PrivateKey)
	if !ok {
		return fmt.Errorf("%s must begin with an Ed25519 key: remove the file, and a new one is made", path)
	}
	t := tracker.New(private, nil)
	so.Peers = t
	s.metrics.MustRegister(t.Metrics()...)
	return nil
}
