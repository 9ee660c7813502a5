package rbd

import "testing"

func TestDead(t *testing.T) {
	p, err := thisProcess()
	if err != nil {
		t.Fatal(err)
	}
	other := p
	other.began += "1"
	for cookie, want := range map[string]bool{
		p.cookie("x"):     false,
		other.cookie("x"): true,
		process{p.boot, p.namespace, "4194305", "7"}.cookie("x"): true,
		process{"0", p.namespace, p.pid, "7"}.cookie("x"):        false,
		process{p.boot, "0", p.pid, "7"}.cookie("x"):             false,
		process{p.boot, p.namespace, "../1", "7"}.cookie("x"):    false,
		"":                false,
		"a.b.c.d":         false,
		"auto 1234567890": false,
	} {
		if got := p.dead(cookie); got != want {
			t.Errorf("%q: got dead %v, want %v", cookie, got, want)
		}
	}
}

// FuzzDead checks cookies, which come from everybody who may write leases. Only those of this
// machine can count as dead.
func FuzzDead(f *testing.F) {
	p, err := thisProcess()
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "....", p.cookie("x"), p.boot + "." + p.namespace + ".1/../1.0.x", "auto 94035"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cookie string) {
		if p.dead(cookie) && (len(cookie) < len(p.boot) || cookie[:len(p.boot)] != p.boot) {
			t.Errorf("%q is of this machine", cookie)
		}
	})
}
