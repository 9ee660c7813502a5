package peers

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"

	"example.org/slipway/oci/peering"
)

// TestTrees follows the parents of nodes up both trees to the leader. All nodes get there, in few
// steps if they know each other, and no node has many children.
func TestTrees(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, nodes := range []int{1, 2, 3, 8, 20, 48} {
		keys := make([]peering.Key, nodes+1)
		for i := range keys {
			keys[i] = sha256.Sum256(fmt.Append(nil, "tree", i))
		}
		for _, knows := range []float64{1, 0.7, 0.2} {
			children := map[peering.Key]int{}
			inner := [2]map[peering.Key]bool{{}, {}}
			up := [2]map[peering.Key]peering.Key{{}, {}}
			for self := range nodes {
				p := &plan{self: keys[self]}
				leader := &member{peer: &peer{key: keys[nodes]}}
				p.members = append(p.members, leader)
				for i := range nodes {
					if i != self && rng.Float64() < knows {
						p.members = append(p.members, &member{peer: &peer{key: keys[i]}})
					}
				}
				for tree, m := range parentsOf("sha256:m", p, leader) {
					to := keys[nodes]
					if m != nil {
						to = m.key
						inner[tree][to] = true
					}
					up[tree][keys[self]] = to
					children[to]++
				}
			}
			for tree := range up {
				for _, from := range keys[:nodes] {
					steps := 0
					for at := from; at != keys[nodes]; at = up[tree][at] {
						if steps++; steps > nodes {
							t.Fatalf("%d nodes that know %.1f of the others: tree %d goes in a circle", nodes, knows, tree)
						}
					}
					if knows == 1 && 1<<(steps-1) > nodes {
						t.Errorf("%d nodes: %d steps to the leader", nodes, steps)
					}
				}
			}
			if knows < 1 {
				continue
			}
			for k, n := range children {
				if n > 3 {
					t.Errorf("%d nodes: one has %d children in both trees", nodes, n)
				}
				if inner[0][k] && inner[1][k] && nodes%2 == 0 {
					t.Errorf("%d nodes: one has children in both trees", nodes)
				}
			}
		}
	}
}
