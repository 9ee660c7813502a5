package lan_test

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/tool"
)

// TestNumberTaken takes the number of the next bridge, as another process may.
func TestNumberTaken(t *testing.T) {
	tool.NeedRoot(t)
	closed := func(l *lan.LAN) {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	first, err := lan.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closed(first)
	number, err := strconv.Atoi(strings.Split(first.Addr, ".")[2])
	if err != nil {
		t.Fatal(err)
	}
	taken := fmt.Sprintf("swl%d", (number+1)%250)
	if out, err := exec.Command("ip", "link", "add", taken, "type", "bridge").CombinedOutput(); err != nil {
		t.Logf("%s exists already: %s", taken, out)
	} else {
		defer func() {
			if out, err := exec.Command("ip", "link", "del", taken).CombinedOutput(); err != nil {
				t.Errorf("remove %s: %v: %s", taken, err, out)
			}
		}()
	}
	second, err := lan.New(t.Context())
	if err != nil {
		t.Fatalf("with %s taken: %v", taken, err)
	}
	defer closed(second)
	if second.Addr == first.Addr {
		t.Errorf("two bridges have the address %s", first.Addr)
	}
}

// TestShape moves bytes to two nodes over links of 80 Mbit/s. Neither may slow the other down, and
// the uplink must limit both.
func TestShape(t *testing.T) {
	tool.NeedRoot(t)
	ctx := t.Context()
	l, err := lan.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	listener, err := net.Listen("tcp", l.Addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const size = 4 << 20
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.CopyN(conn, zeros{}, size) // the test notices a client that is gone
			}()
		}
	}()
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*lan.Node
	for range 2 {
		n, err := l.Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Shape(ctx, 80); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	both := func() time.Duration {
		t.Helper()
		began := time.Now()
		done := make(chan error, len(nodes))
		for _, n := range nodes {
			cmd, err := n.Inside(exec.Command("bash", "-c", "cat </dev/tcp/"+host+"/"+port+" | wc -c"))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				out, err := cmd.CombinedOutput()
				if err == nil && strings.TrimSpace(string(out)) != "4194304" {
					t.Errorf("the node read %s bytes", out)
				}
				done <- err
			}()
		}
		for range nodes {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		return time.Since(began)
	}
	before, err := nodes[0].Received()
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine only adds time: the quickest of five tries is the link's own.
	quickest, tries := time.Hour, int64(0)
	for ; tries < 5 && quickest > 3*time.Second; tries++ {
		quickest = min(quickest, both())
	}
	if quickest < 350*time.Millisecond || quickest > 3*time.Second {
		t.Errorf("4 MiB over 80 Mbit/s took %v", quickest)
	}
	if after, err := nodes[0].Received(); err != nil || after-before < tries*size || after-before > tries*size*11/10 {
		t.Errorf("%d bytes counted, error %v, want about %d times %d", after-before, err, tries, size)
	}
	if err := l.Uplink(ctx, 80); err != nil {
		t.Fatal(err)
	}
	if took := both(); took < 700*time.Millisecond {
		t.Errorf("twice 4 MiB over one uplink of 80 Mbit/s took %v", took)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
