package policy_test

import (
	"fmt"

	"example.org/slipway/internal/policy"
)

// A cache of 100 bytes keeps what is asked for again; whoever holds the bytes drops them
// as it is told.
func ExampleNewCache() {
	p, err := policy.New("gdsf", 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	names := map[policy.Key]string{}
	c := policy.NewCache(100, p, &policy.Options{OnEvict: func(e policy.Entry) { fmt.Println("drop", names[e.Key]) }})
	for _, content := range []struct {
		name string
		size int64
	}{{"config", 10}, {"base", 80}, {"config", 10}, {"app", 40}, {"config", 10}} {
		k := policy.KeyOf([]byte(content.name)) // of a digest's bytes in earnest
		names[k] = content.name
		if c.Get(k) {
			fmt.Println("hit", content.name)
		} else {
			c.Add(k, content.size, 1)
		}
	}
	// Output:
	// hit config
	// drop base
	// hit config
}
