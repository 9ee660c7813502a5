package client_test

import (
	"context"
	"fmt"
	"log"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/gear/export"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// An image's tree is written into a directory; each file comes once, and
// nothing else of the layers.
func Example() {
	reg, err := client.New("https://registry.example.com", &client.Options{DockerConfig: true})
	if err != nil {
		log.Fatal(err)
	}
	defer reg.Close()
	ctx := context.Background()
	c := gearclient.New(reg, nil)
	img, err := c.One(ctx, "team/app", "1.2", nil)
	if err != nil {
		log.Fatal(err)
	}
	index, err := c.Index(ctx, img)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(img.Name(), "has", len(index.Files), "different files")
	if err := export.Tree(ctx, index, c.Files(img, index), "rootfs", nil); err != nil {
		log.Fatal(err)
	}
}

// The images for two platforms become Gear images under one tag.
func ExampleClient_Convert() {
	reg, err := client.New("http://localhost:5000", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer reg.Close()
	both := gearclient.Selection{Platforms: []oci.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}}
	out, err := gearclient.New(reg, nil).Convert(context.Background(), "team/app", "1.2", gearclient.ConvertOptions{Select: both})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out.Tag, "is", out.Digest)
}
