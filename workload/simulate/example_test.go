package simulate_test

import (
	"context"
	"fmt"

	"example.org/slipway/workload/simulate"
)

// Requests need not come from a store.
func ExampleCaches() {
	r := &simulate.Requests{Layer: []uint32{0, 1, 0, 2, 0, 1}, Size: []int64{10, 80, 40}}
	results, err := simulate.Caches(context.Background(), r, []simulate.CacheConfig{
		{Policy: "lru", RAM: 100}, {Policy: "lru", RAM: 50, SSD: 100},
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range results {
		fmt.Printf("%d of %d requests and %d of %d bytes served\n", c.Hits, c.Requests, c.HitBytes, c.Bytes)
	}
	// Output:
	// 2 of 6 requests and 20 of 230 bytes served
	// 3 of 6 requests and 100 of 230 bytes served
}
