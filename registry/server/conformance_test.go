package server_test

import (
	"net/http"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/ocitest"
)

// TestConformance checks the chain of client, server and registry against the contract of the
// registry alone.
func TestConformance(t *testing.T) {
	ocitest.Run(t, func(t *testing.T) oci.Registry {
		b := newBed(t, setup{})
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		c, err := client.New(b.http.URL, &client.Options{Transport: transport, Retries: -1, RetryWait: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}, &ocitest.Options{Remote: true})
}
