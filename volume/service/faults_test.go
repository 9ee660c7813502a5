package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	volumeregistry "example.org/slipway/volume/service"
)

// halting blocks writers of volumes until it is released.
type halting struct {
	block.Store
	halt    *atomic.Bool
	reached chan struct{}
	once    *sync.Once
	creates *atomic.Int64
}

func (h halting) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	h.creates.Add(1)
	v, err := h.Store.Create(ctx, id, parent, size)
	if err == nil && h.halt.Load() {
		h.once.Do(func() { close(h.reached) })
		<-ctx.Done()
		return nil, errors.Join(ctx.Err(), v.Close())
	}
	return v, err
}

func newHalting() halting {
	return halting{halt: &atomic.Bool{}, reached: make(chan struct{}), once: &sync.Once{}, creates: &atomic.Int64{}}
}

func (h halting) over(s block.Store) block.Store { h.Store = s; return h }

// TestRestart checks that the next server continues a build that the end of a server interrupted,
// with a volume half made.
func TestRestart(t *testing.T) {
	p := newPlace(t)
	h := newHalting()
	h.halt.Store(true)
	b := newBed(t, p, setup{store: h.over})
	d := b.push(repo, "v1", base(t), layer(t, "c", "c"))
	<-h.reached
	if st := b.image(repo, d); st.State != volumeregistry.StateBuilding {
		t.Errorf("while it is built: %+v", st)
	}
	if st, err := b.svc.Status(t.Context()); err != nil || len(st.Active) != 1 || st.Active[0].Manifest != d {
		t.Errorf("status: %+v, %v", st, err)
	}
	b.close()
	if got := b.volumes(); len(got) != 1 {
		t.Errorf("half made: got %q, want one", got)
	}
	b = newBed(t, p, setup{})
	b.built(repo, d)
	if got := b.volumes(); len(got) != 2 {
		t.Errorf("volumes: got %q", got)
	}
}

// TestHalfBuiltGoes checks that the remains of a build are removed when its image is gone.
func TestHalfBuiltGoes(t *testing.T) {
	p := newPlace(t)
	h := newHalting()
	h.halt.Store(true)
	b := newBed(t, p, setup{store: h.over})
	d := b.push(repo, "v1", base(t))
	<-h.reached
	if err := b.reg.DeleteManifest(t.Context(), repo, d); err != nil {
		t.Fatal(err)
	}
	if c := collect(t, b, true); c.Images != 0 || c.Volumes != 0 {
		t.Errorf("removed under a build: %+v", c)
	}
	b.close()
	b = newBed(t, p, setup{idle: true})
	collect(t, b, true)
	if got := b.volumes(); len(got) != 0 {
		t.Errorf("volumes: got %q", got)
	}
}

// TestReplicas runs two servers with one catalogue and one storage. One builds an image, and the
// other continues from what it leaves.
func TestReplicas(t *testing.T) {
	p := newPlace(t)
	pg := servers.Postgres(t)
	p.dsn = pg.DSN(pg.CreateDatabase(t))
	h := newHalting()
	h.halt.Store(true)
	o := setup{store: h.over, opts: volumeregistry.Options{Lease: 2 * time.Second}}
	one := newBed(t, p, o)
	two := newBed(t, p, o)
	d := one.push(repo, "v1", base(t))
	<-h.reached
	poll(t, "both know that it is built", func() bool {
		return one.image(repo, d).State == volumeregistry.StateBuilding && two.image(repo, d).State == volumeregistry.StateBuilding
	})
	<-time.After(2500 * time.Millisecond) // longer than a lease; the other must not start meanwhile
	if n := h.creates.Load(); n != 1 {
		t.Errorf("%d builds were begun, want one", n)
	}
	a, err := one.svc.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	builder, other := one, two
	if len(a.Active) == 0 {
		builder, other = two, one
	}
	h.halt.Store(false)
	builder.close()
	other.built(repo, d)
}

// issuing is storage that issues credentials, as Ceph's does.
type issuing struct {
	block.Store
	clones  string
	expired *atomic.Int64
	made    *atomic.Int64
}

func (i issuing) Credential(_ context.Context, ttl time.Duration) (volref.Credential, error) {
	return volref.Credential{User: fmt.Sprintf("writer%d", i.made.Add(1)), Clones: i.clones, Expires: time.Now().Add(ttl)}, nil
}

func (i issuing) ReadCredential(_ context.Context, ttl time.Duration) (volref.Credential, error) {
	return volref.Credential{User: fmt.Sprintf("reader%d", i.made.Add(1)), Expires: time.Now().Add(ttl)}, nil
}

func (i issuing) Expire(context.Context) (int, error) { return int(i.expired.Add(1)), nil }

var _ volumeregistry.Issuer = issuing{}

// TestCredentials checks that a node gets what it asked for and no more, and that expired
// credentials end.
func TestCredentials(t *testing.T) {
	for _, clones := range []string{"", "clones"} {
		n := &atomic.Int64{}
		b := newBed(t, newPlace(t), setup{opts: volumeregistry.Options{CredentialTTL: time.Hour},
			store: func(s block.Store) block.Store { return issuing{s, clones, n, &atomic.Int64{}} }})
		d := b.push(repo, "v1", base(t))
		b.built(repo, d)
		alice := oci.WithActor(t.Context(), &oci.Actor{Name: "alice"})
		c, err := b.svc.Credential(alice, repo, d, false, "")
		if err != nil || !strings.HasPrefix(c.User, "reader") || c.Clones != "" || time.Until(c.Expires) > time.Hour {
			t.Errorf("to read: %+v, %v", c, err)
		}
		c, err = b.svc.Credential(alice, repo, d, true, "")
		if clones == "" && !oci.HasCode(err, oci.CodeUnsupported) || clones != "" && (err != nil || !strings.HasPrefix(c.User, "writer") || c.Clones != clones) {
			t.Errorf("to make clones in %q: %+v, %v", clones, c, err)
		}
		before := n.Load()
		if c := collect(t, b, false); c.Credentials != int(before)+1 {
			t.Errorf("credentials that are over do not end: %+v", c)
		}
	}
}

// TestFull checks that clients learn that the storage is full, and that the build continues when
// there is room.
func TestFull(t *testing.T) {
	full := &atomic.Bool{}
	full.Store(true)
	b := newBed(t, newPlace(t), setup{store: func(s block.Store) block.Store { return crowded{s, full} }})
	d := b.push(repo, "v1", base(t))
	poll(t, "the build fails", func() bool { return b.image(repo, d).State == volumeregistry.StateFailed })
	if st := b.image(repo, d); !strings.HasPrefix(st.Reason, block.ErrFull.Error()) || strings.Contains(st.Reason, "/srv") {
		t.Errorf("the reason: %q", st.Reason)
	}
	if st, err := b.svc.Status(t.Context()); err != nil || len(st.Failures) != 1 || !strings.Contains(st.Failures[0].Reason, "/srv") || st.Failures[0].Retry.IsZero() {
		t.Errorf("status: %+v, %v", st, err)
	}
	full.Store(false)
	if err := b.svc.Queue(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	b.built(repo, d)
}

// crowded is storage without room.
type crowded struct {
	block.Store
	full *atomic.Bool
}

func (c crowded) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	if c.full.Load() {
		return nil, fmt.Errorf("make %s in /srv/volumes: %w", id, block.ErrFull)
	}
	return c.Store.Create(ctx, id, parent, size)
}

// TestStuckVolume checks that a volume which cannot be removed blocks no other and is tried again.
func TestStuckVolume(t *testing.T) {
	stuck := &atomic.Value{}
	stuck.Store("")
	b := newBed(t, newPlace(t), setup{store: func(s block.Store) block.Store { return sticky{s, stuck} }})
	one, two := b.push(repo, "v1", base(t)), b.push(repo, "v2", layer(t, "c", "another"))
	name := b.built(repo, one)[0].Volume()
	b.built(repo, two)
	stuck.Store(name)
	for _, d := range []oci.Digest{one, two} {
		if err := b.svc.Drop(t.Context(), repo, d, ""); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "the other volume goes", func() bool {
		_, err := b.svc.Collect(t.Context(), true)
		got := b.volumes()
		return err != nil && strings.Contains(err.Error(), name) && len(got) == 1 && got[0] == name
	})
	stuck.Store("")
	collect(t, b, true)
	if got := b.volumes(); len(got) != 0 {
		t.Errorf("volumes: got %q", got)
	}
}

// sticky is storage that refuses to remove one volume.
type sticky struct {
	block.Store
	name *atomic.Value
}

func (s sticky) Remove(ctx context.Context, id string) error {
	if id == s.name.Load() {
		return block.ErrDenied
	}
	return s.Store.Remove(ctx, id)
}

// blocking is storage whose removals block.
type blocking struct {
	block.Store
	removes *atomic.Int64
	goOn    chan struct{}
}

func (k blocking) Remove(ctx context.Context, id string) error {
	k.removes.Add(1)
	<-k.goOn
	return k.Store.Remove(ctx, id)
}

// TestOneCollects checks that two collections of a process run one after the other. The second
// could otherwise use an old list and remove what was made again since.
func TestOneCollects(t *testing.T) {
	k := blocking{removes: &atomic.Int64{}, goOn: make(chan struct{})}
	b := newBed(t, newPlace(t), setup{store: func(s block.Store) block.Store { k.Store = s; return k }})
	d := b.push(repo, "v1", base(t))
	b.built(repo, d)
	if err := b.svc.Drop(t.Context(), repo, d, ""); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	first := func() {
		for k.removes.Load() == 0 { // something may hold the image for a moment
			if _, err := b.svc.Collect(t.Context(), true); err != nil {
				t.Error(err)
				return
			}
		}
	}
	wg.Go(first)
	poll(t, "one removes", func() bool { return k.removes.Load() > 0 })
	wg.Go(func() {
		if _, err := b.svc.Collect(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
	<-time.After(50 * time.Millisecond)
	if n := k.removes.Load(); n != 1 {
		t.Errorf("%d removals at once, want one", n)
	}
	close(k.goOn)
	wg.Wait()
	if n := k.removes.Load(); n != 1 || len(b.volumes()) != 0 {
		t.Errorf("%d removals, volumes %q", n, b.volumes())
	}
}

// dropping drops an image when its volume is made.
type dropping struct {
	block.Store
	drop func()
}

func (k dropping) Create(ctx context.Context, id, parent string, size int64) (block.Volume, error) {
	k.drop()
	return k.Store.Create(ctx, id, parent, size)
}

// TestDropUnderBuild checks that no record stays beside an image that is dropped while it is built.
func TestDropUnderBuild(t *testing.T) {
	var b *bed
	var d oci.Digest
	pushed := make(chan struct{})
	var once sync.Once
	drop := func() {
		once.Do(func() {
			<-pushed
			if err := b.svc.Drop(t.Context(), repo, d, ""); err != nil {
				t.Error(err)
			}
		})
	}
	b = newBed(t, newPlace(t), setup{store: func(s block.Store) block.Store { return dropping{s, drop} }})
	d = b.push(repo, "v1", base(t))
	close(pushed)
	poll(t, "the volume goes", func() bool {
		c := collect(t, b, true)
		return c.Images > 0 || len(b.image(repo, d).Records) == 0 && strings.Contains(b.log.String(), "removed volumes")
	})
	if refs := b.referrers(repo, d); len(refs) != 0 {
		t.Errorf("records beside an image that was given up: %+v", refs)
	}
}
