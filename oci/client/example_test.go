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

func ExampleCopy() {
	ctx := context.Background()
	src, err := client.New("https://registry.example.com", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer src.Close()
	dst, err := client.New("http://localhost:5000", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer dst.Close()
	p, err := client.Copy(ctx, dst, src, client.CopyOptions{
		Images:    []client.CopyImage{{From: "library/app", References: []string{"v1"}}},
		Referrers: true,
	})
	fmt.Println(p.Blobs, p.Bytes, err)
}
