package replicas

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"syscall"
	"testing"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/wire"
)

// content returns n bytes that follow from a seed.
func content(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// clients returns one client for each replica.
func (b *bed) clients() []*wire.Client {
	list := make([]*wire.Client, len(b.replicas))
	for i, r := range b.replicas {
		list[i] = wire.New(r.addr)
		b.t.Cleanup(list[i].Close)
	}
	return list
}

// hop uploads data, with each request going to another replica, starting with first. It returns the
// digest. It calls before with the number of each request.
func hop(ctx context.Context, clients []*wire.Client, first int, repo string, data []byte, chunk int, before func(int)) (string, error) {
	n := 0
	next := func() *wire.Client {
		before(n)
		n++
		return clients[(first+n)%len(clients)]
	}
	location, err := next().StartUpload(ctx, repo)
	if err != nil {
		return "", fmt.Errorf("begin: %w", err)
	}
	for off := 0; off < len(data); off += chunk {
		part := data[off:min(off+chunk, len(data))]
		resp, err := next().Do(ctx, http.MethodPatch, location, http.Header{
			"Content-Type":  {"application/octet-stream"},
			"Content-Range": {fmt.Sprintf("%d-%d", off, off+len(part)-1)},
		}, part)
		if err == nil && resp.Status != http.StatusAccepted {
			err = wire.Unexpected(http.MethodPatch, location, resp)
		}
		if err != nil {
			return "", fmt.Errorf("chunk at %d: %w", off, err)
		}
		location = resp.Header.Get("Location")
	}
	digest := wire.Digest(data)
	put, err := wire.WithDigest(location, digest)
	if err != nil {
		return "", err
	}
	resp, err := next().Do(ctx, http.MethodPut, put, nil, nil)
	if err == nil && resp.Status != http.StatusCreated {
		err = wire.Unexpected(http.MethodPut, put, resp)
	}
	if err != nil {
		return "", fmt.Errorf("end: %w", err)
	}
	return digest, nil
}

// TestHop sends the requests of an upload to different replicas. What one has acknowledged must be
// available at all of them, whole and in ranges, and they read it from each other.
func TestHop(t *testing.T) {
	b := newBed(t, 3, 1, "")
	clients := b.clients()
	for i, c := range []struct{ size, chunk int }{{0, 1}, {100, 40}, {70_000, 20_000}, {300_000, 300_000}, {13 << 20, 5 << 20}, {6 << 20, 1<<20 + 1}} {
		data := content(uint64(i), c.size)
		digest, err := hop(t.Context(), clients, i, "hop/app", data, c.chunk, func(int) {})
		if err != nil {
			t.Fatalf("upload of %d bytes in chunks of %d: %v", c.size, c.chunk, err)
		}
		for j, client := range clients {
			if err := client.CheckBlob(t.Context(), "hop/app", digest, int64(c.size)); err != nil {
				t.Errorf("%d bytes at replica %d: %v", c.size, j, err)
			}
			if c.size < 2 {
				continue
			}
			resp, err := client.Do(t.Context(), http.MethodGet, "/v2/hop/app/blobs/"+digest, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", c.size/2, c.size-2)}}, nil)
			if err != nil || resp.Status != http.StatusPartialContent || !bytes.Equal(resp.Body, data[c.size/2:c.size-1]) {
				t.Errorf("a range of %d bytes at replica %d: %v", c.size, j, err)
			}
		}
	}
	peers, failed := 0, 0
	for i := range b.replicas {
		peers += b.metric(t, `slipway_cluster_reads_total{from="peer"}`)[i]
		failed += b.metric(t, "slipway_cluster_fallbacks_total{")[i]
	}
	if peers == 0 || failed > peers {
		t.Errorf("%d reads were delivered by peers, and %d were not", peers, failed)
	}
}

// TestHopKilled kills a replica between two requests of an upload. Nothing that was acknowledged
// may go with it. The upload continues at another replica, from the position that this replica
// reports.
func TestHopKilled(t *testing.T) {
	b := newBed(t, 3, 2, "")
	clients := b.clients()
	data := content(9, 13<<20)
	const chunk = 3 << 20
	location, err := clients[0].StartUpload(t.Context(), "hop/killed")
	if err != nil {
		t.Fatal(err)
	}
	off, at := 0, 0
	for off < len(data) {
		part := data[off:min(off+chunk, len(data))]
		resp, err := clients[at].Do(t.Context(), http.MethodPatch, location, http.Header{
			"Content-Range": {fmt.Sprintf("%d-%d", off, off+len(part)-1)}, "Content-Type": {"application/octet-stream"}}, part)
		if err != nil || resp.Status != http.StatusAccepted {
			t.Fatalf("chunk at %d to replica %d: %v, %+v", off, at, err, resp)
		}
		b.replicas[at].signal(syscall.SIGKILL)
		at = (at + 1) % len(clients)
		var status *wire.Response
		proc.Poll(t, readyTimeout, "the upload can be continued elsewhere", func() bool {
			status, err = clients[at].Do(t.Context(), http.MethodGet, location, nil, nil)
			if err == nil && status.Status != http.StatusNoContent {
				t.Logf("replica %d says %d %s", at, status.Status, status.Body)
			}
			return err == nil && status.Status == http.StatusNoContent
		})
		location = status.Header.Get("Location")
		var last int
		if _, err := fmt.Sscanf(status.Header.Get("Range"), "0-%d", &last); err != nil || last+1 != off+len(part) {
			t.Fatalf("after %d acknowledged bytes the upload is at %q", off+len(part), status.Header.Get("Range"))
		}
		off = last + 1
	}
	put, err := wire.WithDigest(location, wire.Digest(data))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := clients[at].Do(t.Context(), http.MethodPut, put, nil, nil)
	if err != nil || resp.Status != http.StatusCreated {
		t.Fatalf("the end, at replica %d: %v, %+v", at, err, resp)
	}
	b.waitReady()
	for i, c := range b.clients() {
		if err := c.CheckBlob(t.Context(), "hop/killed", wire.Digest(data), int64(len(data))); err != nil {
			t.Errorf("at replica %d: %v", i, err)
		}
	}
}
