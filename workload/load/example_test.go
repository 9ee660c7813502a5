package load_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"example.org/slipway/workload/load"
	"example.org/slipway/workload/load/imageset"
)

// ExampleRun pulls cached images for five minutes, with one to eight pullers and back.
func ExampleRun() {
	res, err := load.Run(context.Background(), &load.Options{
		Target: load.Target{URL: "http://localhost:5000"},
		Set:    imageset.Options{Images: 400, Batches: 8, Prefix: "load/"},
		Step:   20 * time.Second,
	})
	if res != nil { // not nil after an interrupt either
		_ = res.WriteText(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
