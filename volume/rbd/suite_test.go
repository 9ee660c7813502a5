//go:build ceph

package rbd_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/rbd"
)

// deadLease is too long for a test to have waited for a dead process.
const deadLease = time.Minute

func TestSuite(t *testing.T) {
	t.Parallel()
	var at sync.Map // rbd.Options by volref.Place
	blocktest.Run(t, func(t *testing.T) block.Store {
		o, _ := options(t)
		o.LeaseTime = deadLease
		s, err := rbd.Open(t.Context(), o)
		must(t, err)
		at.Store(s.Place(), o)
		return s
	}, &blocktest.Options{
		Where: func(s block.Store) string {
			o, _ := at.Load(s.Place())
			b, err := json.Marshal(o)
			must(t, err)
			return string(b)
		},
		Death: deadLease / 2,
	})
}
