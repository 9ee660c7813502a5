package policy_test

import (
	"fmt"

	"example.org/slipway/internal/policy"
)

// A cache of 100 bytes keeps what is requested again. Whoever holds the bytes drops those
// of an evicted entry.
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
		k := policy.KeyOf([]byte(content.name)) // a real cache takes the bytes of a digest
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
