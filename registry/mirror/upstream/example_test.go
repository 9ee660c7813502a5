package upstream_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror/upstream"
)

func Example() {
	registry := httptest.NewServer(http.HandlerFunc(image))
	defer registry.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()

	u, err := upstream.New(&upstream.Options{Name: "registry.example.com", URL: registry.URL, Mirrors: []string{empty.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer u.Close()
	body, err := u.Blob(context.Background(), "library/app", blobDigest, 15)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer body.Close()
	rest, err := io.ReadAll(body)
	fmt.Printf("%q of %d bytes, %v\n", rest, body.Size, err)

	_, err = u.ResolveBlob(context.Background(), "library/app", oci.SHA256(nil))
	fmt.Println(upstream.KindOf(err))
	// Output:
	// "fghij" of 20 bytes, <nil>
	// not_found
}
