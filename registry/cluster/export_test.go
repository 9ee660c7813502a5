package cluster

import "time"

// AskOnly makes a cluster that is not running believe that another replica is every blob's home.
func (c *Cluster) AskOnly(other *Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = []*peer{
		{id: other.cfg.ID, incarnation: other.self, url: other.url, hash: hashString(other.cfg.ID)},
		{id: "away", away: time.Now().Add(24 * time.Hour)},
	}
}
