package client_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// TestReconnect checks that requests share a connection, and use another one after Reconnect,
// also over HTTP/2, and while a request still runs over the old one.
func TestReconnect(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var made atomic.Int64
			begun, end := make(chan string, 1), make(chan struct{})
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v2/a/blobs/"+string(oci.SHA256(nil)) {
					begun <- r.Proto
					<-end
				}
			}))
			s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
				if st == http.StateNew {
					made.Add(1)
				}
			}
			s.EnableHTTP2 = http2
			s.StartTLS()
			t.Cleanup(s.Close)
			c := dial(t, s.URL, &client.Options{InsecureSkipVerify: true, Retries: -1})
			t.Cleanup(func() { c.Close() })
			ping := func(want int64) {
				t.Helper()
				if err := c.Ping(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := made.Load(); got != want {
					t.Errorf("%d connections were made, want %d", got, want)
				}
			}
			ping(1)
			ping(1)
			done := make(chan error)
			go func() {
				r, err := c.GetBlob(t.Context(), "a", oci.SHA256(nil))
				if err == nil {
					err = r.Close()
				}
				done <- err
			}()
			if proto := <-begun; (proto == "HTTP/2.0") != http2 {
				t.Errorf("the protocol is %s", proto)
			}
			c.Reconnect()
			ping(2)
			ping(2)
			close(end)
			if err := <-done; err != nil {
				t.Error(err)
			}
			ping(2)
		})
	}
}
