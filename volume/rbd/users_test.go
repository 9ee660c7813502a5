//go:build ceph

package rbd_test

import (
	"strings"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/rbd"
)

// as opens a place with a credential and nothing else.
func as(t testing.TB, s block.Store, c volref.Credential) block.Store {
	t.Helper()
	o := rbd.Connect(s.Place(), c)
	o.Timeout, o.LeaseTime = 5*time.Second, leaseTime
	return open(t, o)
}

func issue(t testing.TB, s block.Store, ttl time.Duration, read bool) volref.Credential {
	t.Helper()
	issuer := s.(rbd.Issuer)
	f := issuer.Credential
	if read {
		f = issuer.ReadCredential
	}
	c, err := f(soon(t), ttl)
	must(t, err)
	return c
}

func TestCredential(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	b := content(3, 1<<20)
	fill(t, s, "a", "", 8<<20, b, 4096)

	cred := issue(t, s, time.Hour, false)
	if !strings.HasPrefix(cred.User, "slipway-") || cred.Key == "" || cred.Clones != o.Clones || time.Until(cred.Expires) > time.Hour {
		t.Fatalf("got credential %+v", cred)
	}
	n := as(t, s, cred)
	if n.Place() != s.Place() {
		t.Fatalf("got place %+v, want %+v", n.Place(), s.Place())
	}
	v, err := n.Open(ctx, "a")
	must(t, err)
	wantBytes(t, v, 4096, b)
	want(t, s.Remove(ctx, "a"), block.ErrInUse) // the node's lease counts
	must(t, v.Close())
	if all, err := n.List(ctx, ""); err != nil || len(all) != 1 || !all[0].Committed {
		t.Fatalf("list: %+v, %v", all, err)
	}

	// It may make, write, commit and remove its own clone.
	v, err = n.Create(ctx, "c-1", "a", 16<<20)
	must(t, err)
	wantBytes(t, v, 4096, b)
	_, err = v.WriteAt(b[:5000], 9<<20+7)
	must(t, err)
	must(t, v.Flush())
	wantBytes(t, v, 9<<20+7, b[:5000])
	must(t, v.Close())
	want(t, s.Remove(ctx, "a"), block.ErrInUse)
	must(t, n.Commit(ctx, "c-1"))
	must(t, n.Remove(ctx, "c-1"))

	// Everything else is refused and changes nothing.
	_, err = n.Create(ctx, "b", "", 8<<20)
	want(t, err, block.ErrDenied)
	_, err = n.Create(ctx, "b", "a", 8<<20)
	want(t, err, block.ErrDenied)
	want(t, n.Remove(ctx, "a"), block.ErrDenied)
	_, err = n.(rbd.Issuer).Credential(ctx, time.Hour)
	want(t, err, block.ErrDenied)
	v, err = n.Open(ctx, "a")
	must(t, err)
	wantBytes(t, v, 4096, b)
	must(t, v.Close())

	// It can see neither another pool nor another namespace.
	c.Command(t, "osd", "pool", "create", o.Namespace, "1", "1")
	for _, where := range [][2]string{{o.Namespace, o.Namespace}, {backendtest.RBDPool, "t-other"}} {
		other := rbd.Connect(volref.Place{Pool: where[0], Namespace: where[1]}, cred)
		other.Clones, other.Timeout, other.LeaseTime = "", 5*time.Second, leaseTime
		x, err := rbd.Open(ctx, other)
		if err == nil {
			_, err = x.List(ctx, "")
			must(t, x.Close())
		}
		want(t, err, block.ErrDenied)
	}

	t.Run("read only", func(t *testing.T) {
		cred := issue(t, s, time.Hour, true)
		if cred.Clones != "" {
			t.Fatalf("got credential %+v", cred)
		}
		n := as(t, s, cred)
		v, err := n.Open(ctx, "a")
		must(t, err)
		wantBytes(t, v, 4096, b)
		want(t, s.Remove(ctx, "a"), block.ErrInUse)
		must(t, v.Close())
		cred.Clones = o.Clones // it may claim anything
		n = as(t, s, cred)
		_, err = n.Create(ctx, "c-2", "a", 8<<20)
		want(t, err, block.ErrDenied)
	})
	must(t, s.Remove(ctx, "a"))
}

func TestExpire(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	s := open(t, o)
	ctx := soon(t)
	short, long := issue(t, s, time.Second, false), issue(t, s, time.Hour, false)
	for time.Now().Before(short.Expires) {
		time.Sleep(10 * time.Millisecond)
	}
	if n, err := s.(rbd.Issuer).Expire(ctx); err != nil || n != 1 {
		t.Fatalf("expire: %d, %v; want 1", n, err)
	}
	if n, err := s.(rbd.Issuer).Expire(ctx); err != nil || n != 0 {
		t.Fatalf("expire again: %d, %v; want 0", n, err)
	}
	x := rbd.Connect(s.Place(), short)
	x.Timeout = 5 * time.Second
	_, err := rbd.Open(ctx, x)
	want(t, err, block.ErrDenied)
	as(t, s, long)
	if users := c.Command(t, "auth", "ls"); strings.Contains(users, short.User) || !strings.Contains(users, long.User) {
		t.Errorf("users are now:\n%s", users)
	}
	x = rbd.Connect(s.Place(), long)
	x.Key = short.Key
	_, err = rbd.Open(ctx, x)
	want(t, err, block.ErrDenied)
	x = rbd.Connect(s.Place(), long)
	x.Cluster = "11111111-2222-3333-4444-555555555555"
	if _, err = rbd.Open(ctx, x); err == nil || !strings.Contains(err.Error(), x.Cluster) {
		t.Errorf("with another cluster's volumes: %v", err)
	}
}

// TestOperator uses the caps that docs/volumes-ceph.md gives to the registry's user.
func TestOperator(t *testing.T) {
	t.Parallel()
	o, c := options(t)
	for _, ns := range []string{o.Namespace, o.Clones} {
		c.Tool(t, "rbd", "namespace", "create", "--pool", o.Pool, "--namespace", ns)
	}
	user := "registry-" + o.Namespace
	c.Command(t, "auth", "get-or-create", "client."+user,
		"mon", `profile rbd, allow command "auth get-or-create" with entity prefix client.slipway-, allow command "auth del" with entity prefix client.slipway-`,
		"osd", "profile rbd pool=rbd namespace="+o.Namespace+", profile rbd pool=rbd namespace="+o.Clones+", allow rwx pool=rbd namespace="+rbd.LeaseNamespace(o.Namespace))
	o.User, o.Key = user, strings.TrimSpace(c.Command(t, "auth", "get-key", "client."+user))
	s := open(t, o)
	ctx := soon(t)
	b := content(4, 5000)
	fill(t, s, "a", "", 8<<20, b, 0)
	fill(t, s, "b", "a", 8<<20, b, 4<<20)
	n := as(t, s, issue(t, s, time.Second, false))
	v, err := n.Create(ctx, "c-1", "b", 8<<20)
	must(t, err)
	wantBytes(t, v, 4<<20, b)
	must(t, v.Close())
	for _, id := range []string{"c-1", "b", "a"} {
		must(t, s.Remove(ctx, id))
	}
	time.Sleep(time.Second)
	if n, err := s.(rbd.Issuer).Expire(ctx); err != nil || n != 1 {
		t.Fatalf("expire: %d, %v; want 1", n, err)
	}
}
