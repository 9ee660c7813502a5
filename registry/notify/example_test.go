package notify_test

import (
	"context"
	"fmt"

	"example.org/slipway/oci"
	"example.org/slipway/registry/notify"
)

func Example() {
	endpoints := []notify.Endpoint{{
		Name:   "deploy",
		URL:    "https://deploy.example.com/hook",
		Format: notify.FormatCloudEvents,
		Ignore: notify.Ignore{Actions: []string{"pull"}},
	}}
	n, err := notify.New(endpoints, notify.NewMemQueue(10_000), &notify.Options{ExternalURL: "https://registry.example.com"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { _ = n.Run(ctx) }() // a daemon waits for it
	err = n.Publish(ctx, notify.Event{
		Action: notify.ActionPush, Repo: "library/app", Tag: "v1",
		MediaType: oci.MediaTypeOCIManifest, Digest: oci.SHA256([]byte("{}")), Size: 2,
	})
	if err != nil {
		fmt.Println(err)
	}
}
