//go:build !ceph

package rbd

import (
	"context"
	"errors"

	"example.org/slipway/volume/block"
)

// Available reports whether this binary can use Ceph.
const Available = false

// Open connects to the cluster; this binary cannot.
func Open(context.Context, Options) (block.Store, error) {
	return nil, errors.New("volumes in Ceph: this binary was built without librbd: make build-ceph builds bin/slipway-ceph, which has it")
}
