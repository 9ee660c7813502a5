package client_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// TestGearRetries checks that requests that may be repeated are repeated after a 503.
func TestGearRetries(t *testing.T) {
	data := []byte("0123456789")
	name := sha256.Sum256(data)
	d := oci.SHA256([]byte("m"))
	for what, tt := range map[string]struct {
		ask  func(c *client.Client) error
		once bool
	}{
		"fetch": {ask: func(c *client.Client) error {
			s, err := c.GearFetch(t.Context(), "a", [][32]byte{name})
			if err == nil {
				err = s.Close()
			}
			return err
		}},
		"query":  {ask: func(c *client.Client) error { _, err := c.GearQuery(t.Context(), "a", [][32]byte{name}); return err }},
		"report": {ask: func(c *client.Client) error { return c.GearReportProfile(t.Context(), "a", d, [][32]byte{name}, true) }},
		"put":    {ask: func(c *client.Client) error { return c.GearPutFile(t.Context(), "a", name, 10, bytes.NewReader(data)) }},
		"put a stream": {once: true, ask: func(c *client.Client) error {
			return c.GearPutFile(t.Context(), "a", name, 10, iotest.HalfReader(bytes.NewReader(data)))
		}},
		"put files": {ask: func(c *client.Client) error {
			_, err := c.GearPutFiles(t.Context(), "a", -1, bytes.NewReader(data))
			return err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			var bodies []string
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if bodies = append(bodies, string(b)); len(bodies) == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Content-Type", client.MediaTypeGearStream)
				if strings.HasSuffix(r.URL.Path, "/files") {
					fmt.Fprint(w, `{"stored":1}`)
				}
			})
			err := tt.ask(dial(t, s.URL, nil))
			if tt.once {
				wantCode(t, err, oci.CodeUnavailable)
				if len(bodies) != 1 {
					t.Errorf("sent %d times", len(bodies))
				}
				return
			}
			if err != nil || len(bodies) != 2 || bodies[0] != bodies[1] || bodies[0] == "" {
				t.Errorf("got %v and bodies %q", err, bodies)
			}
		})
	}
}

// TestGearAnswers checks invalid answers of registries.
func TestGearAnswers(t *testing.T) {
	name := sha256.Sum256([]byte("x"))
	layer := oci.SHA256([]byte("layer"))
	layerOf := func(c *client.Client) error {
		r, _, err := c.GearLayer(t.Context(), "a", layer)
		if err == nil {
			defer r.Close()
			_, err = io.ReadAll(r)
		}
		return err
	}
	for what, tt := range map[string]struct {
		status  int
		headers map[string]string
		body    string
		ask     func(c *client.Client) error
		want    string // text of the error
	}{
		"layer without a name": {status: 200, body: "x", ask: layerOf, want: "does not name"},
		"layer with a bad name": {status: 200, headers: map[string]string{"Slipway-Gear-Name": "sha512:" + strings.Repeat("a", 128)}, body: "x", ask: layerOf,
			want: "is not a file's name"},
		"layer with another name": {status: 200, headers: map[string]string{"Slipway-Gear-Name": string(layer)}, body: "x", ask: layerOf, want: "delivered 1 bytes with digest"},
		"empty layer":             {status: 200, headers: map[string]string{"Slipway-Gear-Name": string(layer)}, ask: layerOf, want: "delivered 0 bytes with digest"},
		"layer's partial content": {status: 206, headers: map[string]string{"Slipway-Gear-Name": string(layer)}, body: "x", ask: layerOf, want: "another part"},
		"layer in HTML":           {status: 404, headers: map[string]string{"Retry-After": "x"}, body: "<html>", ask: layerOf, want: "404"},
		"stream in HTML": {status: 200, headers: map[string]string{"Content-Type": "text/html"}, ask: func(c *client.Client) error {
			_, err := c.GearFetch(t.Context(), "a", [][32]byte{name})
			return err
		}, want: "no stream of files"},
		"query of half a name": {status: 200, body: "x", ask: func(c *client.Client) error { _, err := c.GearQuery(t.Context(), "a", [][32]byte{name}); return err },
			want: "not a list of names"},
		"query with more than was asked": {status: 200, body: strings.Repeat("x", 64), ask: func(c *client.Client) error { _, err := c.GearQuery(t.Context(), "a", [][32]byte{name}); return err },
			want: "larger than 32 bytes"},
		"profile of what are no names": {status: 200, body: `{"names":["sha256:abc"]}`, ask: func(c *client.Client) error { _, err := c.GearProfile(t.Context(), "a", layer); return err },
			want: "is not a file's name"},
		"stored that is no JSON": {status: 201, body: "2", ask: func(c *client.Client) error {
			_, err := c.GearPutFiles(t.Context(), "a", 1, strings.NewReader("x"))
			return err
		}, want: "read answer"},
		"info of nothing": {status: 404, ask: func(c *client.Client) error { _, err := c.GearInfo(t.Context()); return err }, want: string(oci.CodeUnsupported)},
	} {
		t.Run(what, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				for k, v := range tt.headers {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			err := tt.ask(dial(t, s.URL, nil))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
			var p *client.GearPendingError
			if errors.As(err, &p) {
				t.Errorf("got the pending error %+v", p)
			}
		})
	}
}

// TestGearPending checks that a Retry-After is returned and not waited for, whatever the
// detail.
func TestGearPending(t *testing.T) {
	var asked atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"wait","detail":["x"]}]}`)
	})
	_, _, err := dial(t, s.URL, nil).GearLayer(t.Context(), "a", oci.SHA256(nil))
	var p *client.GearPendingError
	if !errors.As(err, &p) || p.RetryAfter != time.Hour || asked.Load() != 1 {
		t.Errorf("asked %d times, got %v", asked.Load(), err)
	}
	wantCode(t, err, oci.CodeBlobUnknown)
}
