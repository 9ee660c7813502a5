package service_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/storage"
)

// packs reports whether an operation finishes a pack.
func packs(op, key string) bool {
	return op == objtest.OpCommit && strings.HasPrefix(key, "slipway/gear/packs/")
}

// full makes writes to the store of packs fail as on a full disk, until the fault is removed. It
// returns the number of attempts to write.
func (b *bed) full() (attempts *atomic.Int32) {
	attempts = new(atomic.Int32)
	b.fault(func(op, key string) error {
		if packs(op, key) {
			attempts.Add(1)
			return fmt.Errorf("write: %w", objstore.ErrNoSpace)
		}
		return nil
	})
	return attempts
}

// TestQueueSurvives ends a process in the middle of a conversion. The next process must
// resume it.
func TestQueueSurvives(t *testing.T) {
	b := newBed(t, setup{})
	held := make(chan struct{}, 8)
	b.fault(func(op, key string) error {
		if packs(op, key) {
			held <- struct{}{}
			return errors.New("the process ends here")
		}
		return nil
	})
	_, d := b.push(ours, layer(1, 10, 50_000))
	<-held
	b.close()
	b.fault(nil)
	b.open()
	b.pass(gearregistry.LastRetry)
	b.eventually("the conversion", func() bool { return b.status().Layers == 1 })
	b.readable(ours, d)
	b.quiet()
	if st := b.status(); st.Waiting+st.Failed > 0 {
		t.Errorf("got %+v", st)
	}
}

// TestQueueIdle checks that without a worker, pushes queue their layers for later and do
// not wait.
func TestQueueIdle(t *testing.T) {
	b := newBed(t, setup{idle: true, gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Sync }}})
	small := zipped(tarOf(file{"a", []byte("small")})) // too small to be an object, so its upload is not followed
	began := time.Now()
	_, d := b.push(ours, small)
	if took := time.Since(began); took > patience {
		t.Errorf("the push waited for %v", took)
	}
	b.pending(ours, d, "")
	if st := b.status(); st.Waiting != 1 {
		t.Errorf("got %+v", st)
	}
	b.restart()
	b.run()
	b.wait(d)
	b.readable(ours, d)
	b.quiet()
	b.stop()
	b.stop = func() {}
}

// TestQueueRetries checks that a full store fails no push, and that the conversion is
// retried at growing intervals until it succeeds.
func TestQueueRetries(t *testing.T) {
	b := newBed(t, setup{})
	attempts := b.full()
	_, d := b.push(ours, zipped(tarOf(file{"a", []byte("small")})))
	failed := func(n int) {
		t.Helper()
		b.eventually(fmt.Sprint("failure ", n), func() bool {
			st := b.status()
			return len(st.Failures) == 1 && st.Failures[0].Attempts == n
		})
		b.quiet()
	}
	failed(1)
	b.pending(ours, d, "for a reason that may pass") // the client learns no more than that
	if st := b.status(); !strings.Contains(st.Failures[0].Reason, "no space left") || st.Failures[0].Retry.IsZero() {
		t.Errorf("got %+v", st.Failures)
	}
	_, _, source := b.svc.StoredIndex(t.Context(), ours, d)
	for who, err := range map[string]error{"a page": b.svc.MayLook(t.Context(), ours, d), "a volume": source, "a push": b.svc.Wait(t.Context(), d)} {
		var p *gear.PendingError
		if !errors.As(err, &p) || p.Reason == "" || strings.Contains(p.Reason, "no space left") {
			t.Errorf("%s is told: %v", who, err)
		}
	}
	wait := gearregistry.FirstRetry
	for n := 2; n < 16; n++ {
		b.pass(wait - time.Second)
		b.svc.Wake()
		b.quiet()
		if got := attempts.Load(); got != int32(n-1) {
			t.Fatalf("%d attempts before the time of the %dth", got, n)
		}
		b.pass(time.Second + time.Millisecond)
		failed(n)
		wait = min(2*wait, gearregistry.LastRetry)
	}
	b.fault(nil)
	b.pass(gearregistry.LastRetry)
	b.eventually("the conversion", func() bool { return b.status().Layers == 1 })
	b.readable(ours, d)
	b.quiet()
	if st := b.status(); st.Failed > 0 {
		t.Errorf("got %+v", st)
	}
}

// TestQueuePermanent checks that layers that cannot be converted can still be pushed.
// They stay in the queue with the reason, and the client gets the reason too.
func TestQueuePermanent(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	good := layer(2, 3, 30_000)
	broken := slices.Clone(good)
	broken[len(broken)/2] ^= 0xff
	plain := tarOf(file{"a", content(1, 40_000)})
	for name, test := range map[string]struct {
		data   []byte
		o      gearregistry.Options
		reason string
		tick   time.Duration
	}{
		"too much work":  {data: layer(5, 30, 300_000), o: gearregistry.Options{LayerTime: 3 * time.Second}, tick: time.Second, reason: "more than 3s of work"},
		"corrupt gzip":   {data: broken, reason: "layer at"},
		"truncated gzip": {data: good[:len(good)-20_000], reason: "unexpected EOF"},
		"truncated tar":  {data: zipped(plain[:20_000]), reason: "unexpected EOF"},
		"escaping path":  {data: zipped(tarOf(file{"../../etc/passwd", content(2, 30_000)})), reason: "etc/passwd"},
		"no tar":         {data: zipped(content(3, 50_000)), reason: "layer at"},
		"not compressed": {data: content(4, 50_000), reason: "layer at"},
		"small, no tar":  {data: []byte("hello"), reason: "layer at"},
		"too many":       {data: good, o: gearregistry.Options{Layer: &rootfs.Options{MaxEntries: 2}}, reason: "gear.max_entries"},
		"too large":      {data: good, o: gearregistry.Options{Layer: &rootfs.Options{MaxBytes: 50_000}}, reason: "gear.max_layer_bytes"},
		"index too large": {data: good, o: gearregistry.Options{Index: &gear.Limits{Entries: 2}},
			reason: "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, setup{gear: test.o, tick: test.tick})
			_, d := b.push(ours, test.data)
			b.eventually("the failure", func() bool { return b.status().Failed == 1 })
			b.quiet()
			for range 5 {
				b.pass(1000 * time.Hour)
				b.quiet()
			}
			st := b.status()
			if len(st.Failures) != 1 || st.Failures[0].Layer != d || st.Failures[0].Attempts != 1 || !strings.Contains(st.Failures[0].Reason, test.reason) || !st.Failures[0].Retry.IsZero() {
				t.Errorf("got %+v, want the reason %q after one attempt", st.Failures, test.reason)
			}
			b.pending(ours, d, test.reason)
			// A new request tries it again.
			if n, err := b.svc.QueueAll(t.Context(), true); n != 1 || err != nil {
				t.Errorf("queued %d (%v)", n, err)
			}
			b.eventually("another failure", func() bool { return b.metric("conversion_failures_total") == 2 })
			b.quiet()
		})
	}
}

// TestQueueDamagedLayer checks that a layer whose blob is damaged in the store is not
// given up.
func TestQueueDamagedLayer(t *testing.T) {
	b := newBed(t, setup{idle: true, off: true})
	data := layer(3, 5, 30_000)
	_, d := b.push(ours, data)
	bad := slices.Clone(data)
	bad[len(bad)/2] ^= 0x10
	b.must(b.objs.Delete(t.Context(), storage.BlobKey(d)))
	put(b, storage.BlobKey(d), bad)
	b.run()
	if n, err := b.svc.QueueAll(t.Context(), false); n != 1 || err != nil {
		t.Errorf("queued %d (%v)", n, err)
	}
	b.eventually("the failure", func() bool { return b.status().Failed == 1 })
	if f := b.status().Failures[0]; !strings.Contains(f.Reason, "digest") || f.Retry.IsZero() {
		t.Errorf("got %+v", f)
	}
	b.must(b.objs.Delete(t.Context(), storage.BlobKey(d)))
	put(b, storage.BlobKey(d), data)
	b.pass(gearregistry.LastRetry)
	b.eventually("the conversion", func() bool { return b.status().Layers == 1 })
	b.readable(ours, d)
}

// TestQueueAll queues images that were pushed while conversion was off.
func TestQueueAll(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Off }}})
	var layers []oci.Digest
	for i := range 5 {
		_, d := b.push(ours, layer(uint64(30+i), 3, 20_000))
		layers = append(layers, d)
	}
	b.pushManifest(theirs, b.pushBlob(theirs, layer(30, 3, 20_000))) // the second image holds this layer too
	b.pending(ours, layers[0], "conversion is off")
	if st := b.status(); st.Layers+st.Waiting > 0 {
		t.Fatalf("converted although it is off: %+v", st)
	}
	if n, err := b.svc.QueueAll(t.Context(), false); n != 5 || err != nil {
		t.Errorf("queued %d (%v), want 5", n, err)
	}
	for _, d := range layers {
		b.wait(d)
		b.readable(ours, d)
	}
	b.quiet()
	if n, err := b.svc.QueueAll(t.Context(), true); n != 0 || err != nil {
		t.Errorf("queued %d (%v) the second time", n, err)
	}
}

// TestSync checks that the push of a manifest is answered when its layers are converted,
// or when the timeout is over.
func TestSync(t *testing.T) {
	o := gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Sync }, SyncTimeout: 50 * time.Millisecond}
	b := newBed(t, setup{gear: o})
	hold := make(chan struct{})
	b.fault(func(op, key string) error {
		if packs(op, key) {
			<-hold
		}
		return nil
	})
	_, d := b.push(ours, zipped(tarOf(file{"a", []byte("first")}))) // answered after the timeout
	b.pending(ours, d, "")
	if !strings.Contains(b.log.String(), "not converted") {
		t.Errorf("the log says nothing: %s", b.log)
	}
	close(hold)
	b.wait(d)
	b.close()
	b.fault(nil)
	b.o.gear.SyncTimeout = patience
	b.open()
	for i := range 5 {
		_, d := b.push(ours, layer(uint64(40+i), 3, 3_000*(i+1)))
		b.readable(ours, d) // there is no need to wait
	}
	// The push does not wait for a layer that cannot be converted.
	b.push(ours, []byte("no layer at all"))
}

// TestSyncOutlastsEvent checks that the wait does not end with the context of the event.
func TestSyncOutlastsEvent(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Sync }}})
	d := b.pushBlob(ours, zipped(tarOf(file{"a", []byte("b")})))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	hold := make(chan struct{})
	b.fault(func(op, key string) error {
		if packs(op, key) {
			cancel()
			<-hold
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.svc.OnEvent(ctx, registry.Event{Action: registry.ActionPush, Repo: ours, References: []oci.Descriptor{{MediaType: gzipLayer, Digest: d}}})
	}()
	<-ctx.Done()
	select {
	case <-done:
		t.Error("the wait ended with the context of the event")
	case <-time.After(20 * time.Millisecond):
	}
	close(hold)
	<-done
	b.readable(ours, d)
}

// TestSyncStops checks that a waiting push does not keep the process from ending.
func TestSyncStops(t *testing.T) {
	b := newBed(t, setup{gear: gearregistry.Options{Mode: func(string) gearregistry.Mode { return gearregistry.Sync }}})
	d := b.pushBlob(ours, zipped(tarOf(file{"a", []byte("b")})))
	held, hold := make(chan struct{}), make(chan struct{})
	b.fault(func(op, key string) error {
		if packs(op, key) {
			close(held)
			<-hold
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.pushManifest(ours, d)
	}()
	<-held
	b.stop()
	b.stop = func() {}
	<-done
	close(hold)
}

// TestQueueDeleted deletes layers while they are queued.
func TestQueueDeleted(t *testing.T) {
	b := newBed(t, setup{idle: true})
	m, _ := b.push(ours, zipped(tarOf(file{"a", []byte("small")})))
	b.must(b.reg.DeleteManifest(t.Context(), ours, m))
	b.collect()
	if st := b.status(); st.Waiting != 0 {
		t.Errorf("a layer that is gone waits: %+v", st)
	}
	// Do the same with a layer that a worker is already converting.
	m, d := b.push(ours, zipped(tarOf(file{"a", []byte("other")})))
	held, hold := make(chan struct{}), make(chan struct{})
	b.fault(func(op, key string) error {
		if packs(op, key) {
			close(held)
			<-hold
		}
		return nil
	})
	b.run()
	<-held
	b.must(b.reg.DeleteManifest(t.Context(), ours, m))
	b.collect()
	close(hold)
	b.quiet()
	if st := b.status(); st.Layers+st.Files+st.Waiting+st.Failed != 0 {
		t.Errorf("something is left: %+v", st)
	}
	if err := b.svc.Wait(t.Context(), d); err == nil {
		t.Error("a layer that is gone was converted")
	}
}

// TestQueueCannotRecord checks that conversions are not restarted again and again when
// the catalogue accepts no writes.
func TestQueueCannotRecord(t *testing.T) {
	b := newBed(t, setup{})
	var attempts atomic.Int32
	ctx := context.Background()
	b.fault(func(op, key string) error {
		if packs(op, key) {
			attempts.Add(1)
			b.cat.Close() // for later writes this is like a full disk
			return objstore.ErrNoSpace
		}
		return nil
	})
	b.push(ours, zipped(tarOf(file{"a", []byte("small")})))
	b.eventually("the attempt", func() bool { return attempts.Load() > 0 && b.svc.SlotsTaken() == 0 })
	for range 50 {
		b.svc.Wake()
		<-time.After(time.Millisecond)
	}
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d attempts", n)
	}
	b.stop()
	b.svc.Close()
	if err := b.reg.Close(ctx); err == nil {
		t.Error("the catalogue is open after all")
	}
	b.cat = nil
}

// TestDeterministic checks that the same pushes, one after the other, give the same packs
// and indexes with one worker and with eight.
func TestDeterministic(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	run := func(workers int) []string {
		store := memstore.New(nil)
		b := newBed(t, setup{store: store, gear: gearregistry.Options{Workers: workers}})
		var out []string
		for i := range 3 {
			files := []file{{"common", content(99, 60_000)}}
			for j := range 40 {
				files = append(files, file{fmt.Sprint(j), bytes.Repeat(content(uint64(i*50+j), 100), 100+20*j)})
			}
			files = append(files, file{"large", content(uint64(i), 5<<20)})
			_, d := b.push(ours, zipped(tarOf(files...)))
			b.wait(d)
			b.quiet()
			c, err := b.svc.Layer(t.Context(), ours, d)
			b.must(err)
			n := c.Name()
			out = append(out, string(d)+" "+hex.EncodeToString(n[:]))
		}
		for info, err := range store.List(t.Context(), "slipway/gear/packs/", "") {
			b.must(err)
			out = append(out, fmt.Sprint(info.Key, " ", info.Size))
		}
		return out
	}
	if diff := cmp.Diff(run(1), run(8)); diff != "" {
		t.Errorf("(-1 worker +8):\n%s", diff)
	}
}

func TestIsLayer(t *testing.T) {
	for kind, want := range map[string]bool{
		"application/vnd.oci.image.layer.v1.tar":                       true,
		"application/vnd.oci.image.layer.v1.tar+gzip":                  true,
		"application/vnd.oci.image.layer.v1.tar+zstd":                  true,
		"application/vnd.docker.image.rootfs.diff.tar":                 true,
		"application/vnd.docker.image.rootfs.diff.tar.gzip":            true,
		"application/vnd.docker.image.rootfs.diff.tar.zstd":            true,
		"application/vnd.oci.image.layer.v1.tar+gzip+encrypted":        false,
		"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": false,
		"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    false,
		"application/vnd.oci.image.config.v1+json":                     false,
		"application/vnd.cncf.helm.chart.content.v1.tar+gzip":          false,
		"": false,
	} {
		if got := gear.IsLayer(kind); got != want {
			t.Errorf("%q: got %v", kind, got)
		}
	}
}
