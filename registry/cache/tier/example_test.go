package tier_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"example.org/slipway/registry/cache/tier"
	"example.org/slipway/registry/objstore/memstore"
)

func ExampleNew() {
	ctx := context.Background()
	inner := memstore.New(nil) // in production a store behind a network
	s, err := tier.New(inner, &tier.Options{
		RAMBytes:  64 << 20,
		Cacheable: func(key string) bool { return strings.HasPrefix(key, "blobs/") },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	if err := inner.Put(ctx, "blobs/a", []byte("bytes\n"), false); err != nil {
		fmt.Println(err)
	}
	for range 2 {
		o, err := s.Get(ctx, "blobs/a", 0, -1)
		if err != nil {
			fmt.Println(err)
			return
		}
		if _, err := o.WriteTo(os.Stdout); err != nil {
			fmt.Println(err)
		}
		o.Close()
	}
	st := s.Status()
	fmt.Println(s.Holds("blobs/a"), st.Fetched, "fetched,", st.RAM.Hits, "hit")
	// Output:
	// bytes
	// bytes
	// ram 1 fetched, 1 hit
}
