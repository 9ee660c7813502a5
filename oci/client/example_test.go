package client_test

import (
	"context"
	"fmt"
	"os"

	"example.org/slipway/oci/client"
)

func Example() {
	ctx := context.Background()
	c, err := client.New("https://registry.example.com", &client.Options{DockerConfig: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	m, err := c.GetManifest(ctx, "library/app", "v1")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = os.Stdout.Write(m.Bytes)
}
