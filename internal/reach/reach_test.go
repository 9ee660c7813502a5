package reach_test

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"example.org/slipway/internal/reach"
)

func TestClasses(t *testing.T) {
	for in, want := range map[string]reach.Class{
		"8.8.8.8": reach.Public, "2001:4860:4860::8888": reach.Public, "64:ff9b::808:808": reach.Public, "2002:808:808::1": reach.Public, "::ffff:8.8.8.8": reach.Public,
		"127.0.0.1": reach.Loopback, "127.255.0.1": reach.Loopback, "::1": reach.Loopback, "::ffff:127.0.0.1": reach.Loopback, "64:ff9b::7f00:1": reach.Loopback, "2002:7f00:1::": reach.Loopback,
		"10.0.0.1": reach.Private, "172.16.0.1": reach.Private, "172.31.255.255": reach.Private, "172.32.0.1": reach.Public, "192.168.1.1": reach.Private, "fd12::1": reach.Private,
		"100.64.0.1": reach.Private, "100.100.100.200": reach.Private, "100.128.0.1": reach.Public, "198.18.0.1": reach.Private, "fec0::1": reach.Private, "64:ff9b:1::1": reach.Private,
		"169.254.169.254": reach.Special, "fe80::1": reach.Special, "fe80::1%lo": reach.Special, "::ffff:169.254.169.254": reach.Special, "64:ff9b::a9fe:a9fe": reach.Special,
		"0.0.0.0": reach.Special, "0.1.2.3": reach.Special, "::": reach.Special, "::7f00:1": reach.Special, "224.0.0.1": reach.Special, "ff02::1": reach.Special,
		"255.255.255.255": reach.Special, "240.0.0.1": reach.Special, "168.63.129.16": reach.Special, "fd00:ec2::254": reach.Special, "192.0.0.192": reach.Special, "2001::1": reach.Special,
	} {
		if got := reach.ClassOf(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s: got %v, want %v", in, got, want)
		}
	}
	if got := reach.ClassOf(netip.Addr{}); got != reach.Special {
		t.Errorf("no address: got %v", got)
	}
}

func TestGuard(t *testing.T) {
	var like atomic.Uint32
	like.Store(uint32(reach.Private | reach.Special))
	for name, tt := range map[string]struct {
		g     reach.Guard
		yes   []string
		never []string
	}{
		"strict":     {reach.Guard{}, []string{"8.8.8.8:443"}, []string{"127.0.0.1:80", "[::1]:80", "[fe80::1%lo]:80", "10.0.0.1:1", "x", ""}},
		"configured": {reach.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fe80::/10")}}, []string{"10.1.2.3:9", "[::ffff:10.1.2.3]:9", "[fe80::1%lo]:80"}, []string{"10.2.0.0:1"}},
		"like":       {reach.Guard{Like: &like}, []string{"192.168.0.1:80", "8.8.8.8:80"}, []string{"127.0.0.1:80", "169.254.169.254:80"}},
	} {
		for _, a := range tt.yes {
			if err := tt.g.Control(t.Context(), "tcp", a, nil); err != nil {
				t.Errorf("%s: %s: %v", name, a, err)
			}
		}
		for _, a := range tt.never {
			if err := tt.g.Control(t.Context(), "tcp", a, nil); err == nil {
				t.Errorf("%s: %s is allowed", name, a)
			}
		}
	}
}
