package service_test

import (
	"testing"
	"time"

	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/objstore/memstore"
)

// servers are shared by the tests with several processes. TestMain stops them.
var servers backendtest.Shared

// withServers stops the servers of the package after its tests.
type withServers struct{ *testing.M }

func (m withServers) Run() int {
	defer servers.Close()
	return m.M.Run()
}

// replicas returns two processes over one catalogue and one store.
func replicas(t *testing.T, o setup) (a, b *bed) {
	t.Helper()
	pg := servers.Postgres(t)
	o.dsn, o.store = pg.DSN(pg.CreateDatabase(t)), memstore.New(nil)
	return newBed(t, o), newBed(t, o)
}

// TestReplicasConvertOnce has two processes work on one queue. Each layer is converted
// once, and both processes serve what the other one made.
func TestReplicasConvertOnce(t *testing.T) {
	a, b := replicas(t, setup{idle: true, gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Off }}})
	var layers []oci.Digest
	for i := range 12 {
		_, d := a.push(ours, layer(uint64(i), 5, 20_000))
		layers = append(layers, d)
	}
	before := map[oci.Digest]int{}
	for _, d := range layers {
		before[d] = a.opens(d) + b.opens(d)
	}
	if n, err := b.svc.QueueAll(t.Context(), false); n != len(layers) || err != nil {
		t.Fatalf("queued %d, %v", n, err)
	}
	a.run()
	b.run()
	for _, d := range layers {
		a.wait(d)
		b.wait(d)
		if n := a.opens(d) + b.opens(d) - before[d]; n != 1 {
			t.Errorf("layer %s was converted %d times", d, n)
		}
		a.readable(ours, d)
		b.readable(ours, d)
	}
}

// TestReplicasWait checks that a process that waits for a conversion notices when another
// process finishes it.
func TestReplicasWait(t *testing.T) {
	a, b := replicas(t, setup{idle: true, gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Off }}})
	_, d := a.push(ours, layer(1, 3, 5_000))
	if n, err := a.svc.QueueAll(t.Context(), false); n != 1 || err != nil {
		t.Fatalf("queued %d, %v", n, err)
	}
	waited := make(chan error, 1)
	go func() { waited <- a.svc.Wait(t.Context(), d) }()
	b.run()
	select {
	case err := <-waited:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("waited in vain")
	}
	a.readable(ours, d)
	b.readable(ours, d)
}

// TestReplicasAccessEnds checks that access ends within seconds after another process
// deleted the layer.
func TestReplicasAccessEnds(t *testing.T) {
	a, b := replicas(t, setup{})
	secret := []byte("a file")
	data := zipped(tarOf(file{"a", secret}))
	d := a.pushBlob(ours, data)
	a.must(a.svc.Queue(t.Context(), ours, []oci.Digest{d}))
	a.pushBlob(theirs, data)
	a.wait(d)
	b.readable(ours, d)
	a.must(a.reg.DeleteBlob(t.Context(), ours, d))
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, err := b.read(ours, name(secret))
		if oci.HasCode(err, oci.CodeBlobUnknown) {
			break
		}
		b.must(err)
		if took := time.Since(began); took > 15*time.Second {
			t.Fatalf("%v after the deletion it can still be read", took)
		}
	}
	b.readable(theirs, d)
}
