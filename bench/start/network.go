package start

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/netdelay"
	"example.org/slipway/integration/internal/proc"
)

// These are ports in the namespace. The port of the registry's health check is on its loopback.
const (
	registryPort = 5000
	debugPort    = 5001
	delayedPort  = 5002 // the registry behind the delaying proxy
	peerPort     = 5003 // the peer of the self-test
	farPeerPort  = 5004 // the same peer behind a proxy
	heldPort     = 5005 // the registry behind a proxy that holds one connection
)

// network is a namespace with the registry's side of a veth. The other side is this machine's. Both
// sides send at a limited rate.
type network struct {
	ns, near, far     string // names of the namespace and the two interfaces
	nearAddr, farAddr string
	self              string // path of this program, for the commands in the namespace
	dir               string
	children          []*proc.Process
}

// newNetwork makes a namespace. close removes it.
func newNetwork(ctx context.Context, dir string) (*network, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	id := os.Getpid() % 100000
	n := &network{ns: fmt.Sprintf("slipway-bench-%d", id), near: fmt.Sprintf("swb%dn", id), far: fmt.Sprintf("swb%df", id),
		nearAddr: fmt.Sprintf("10.213.%d.1", id%256), farAddr: fmt.Sprintf("10.213.%d.2", id%256), self: self, dir: dir}
	for _, args := range [][]string{
		{"netns", "add", n.ns},
		{"link", "add", n.near, "type", "veth", "peer", "name", n.far, "netns", n.ns},
		{"addr", "add", n.nearAddr + "/30", "dev", n.near},
		{"link", "set", n.near, "up"},
		{"-n", n.ns, "addr", "add", n.farAddr + "/30", "dev", n.far},
		{"-n", n.ns, "link", "set", n.far, "up"},
		{"-n", n.ns, "link", "set", "lo", "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// run runs a program that prints nothing of interest.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// close ends what runs in the namespace and removes it.
func (n *network) close() error {
	for _, p := range n.children {
		_ = p.Stop(stopTimeout) // it no longer matters how it ends
	}
	n.children = nil
	var errs []error
	// The interfaces go away with the namespace, but not at once.
	if _, err := os.Stat(filepath.Join("/sys/class/net", n.near)); err == nil {
		errs = append(errs, run(context.Background(), "ip", "link", "del", n.near))
	}
	if _, err := os.Stat(filepath.Join("/run/netns", n.ns)); err == nil {
		errs = append(errs, run(context.Background(), "ip", "netns", "del", n.ns))
	}
	return errors.Join(errs...)
}

// command returns a command that runs a program in the namespace. The program does not see the
// machine's cgroups: ip netns exec mounts another /sys over them.
func (n *network) command(program string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.ns, program}, args...)...)
}

// launch runs one of the suite's inner commands in the namespace until the network is closed, and
// waits until it listens on a port.
func (n *network) launch(ctx context.Context, port int, args ...string) error {
	p, err := n.begin(ctx, port, args...)
	if p != nil {
		n.children = append(n.children, p)
	}
	return err
}

// begin is like launch, for a command that the caller stops.
func (n *network) begin(ctx context.Context, port int, args ...string) (*proc.Process, error) {
	p, err := proc.Launch(n.command(n.self, append([]string{"start"}, args...)...), filepath.Join(n.dir, args[0]+".log"))
	if err != nil {
		return nil, err
	}
	return p, waitFor(ctx, p, func() error {
		c, err := net.DialTimeout("tcp", n.address(port), time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// address returns the address of a port in the namespace, as seen from this machine.
func (n *network) address(port int) string { return net.JoinHostPort(n.farAddr, strconv.Itoa(port)) }

// shape limits both directions to a rate in Mbit/s; 0 means no limit. A burst is what the link
// carries in about 5 ms, but at least one large packet as it leaves TCP.
func (n *network) shape(ctx context.Context, mbit int) error {
	for _, end := range [][]string{{"qdisc", "replace", "dev", n.near, "root"}, {"-n", n.ns, "qdisc", "replace", "dev", n.far, "root"}} {
		how := []string{"pfifo", "limit", "10000"}
		if mbit > 0 {
			how = []string{"tbf", "rate", strconv.Itoa(mbit) + "mbit", "burst", strconv.Itoa(max(64<<10, mbit*625)), "latency", "400ms"}
		}
		if err := run(ctx, "tc", append(end, how...)...); err != nil {
			return err
		}
	}
	return nil
}

// hold starts a proxy to the registry with a round trip, which holds one connection to a rate in
// bytes a second. stop ends it.
func (n *network) hold(ctx context.Context, rttMs int, perSec int64) (stop func(), err error) {
	p, err := n.begin(ctx, heldPort, "delay", "-listen", n.address(heldPort), "-target", n.address(registryPort),
		"-rtt", fmt.Sprintf("%dms", rttMs), "-held", strconv.FormatInt(perSec, 10))
	stop = func() {
		if p != nil {
			_ = p.Stop(stopTimeout) // it does not matter how it ends
		}
	}
	if err != nil {
		stop()
	}
	return stop, err
}

// received returns the number of bytes that have come over the link, headers included.
func (n *network) received() (int64, error) {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", n.near, "statistics", "rx_bytes"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// waitFor calls ready until it returns no error, the process ends, or half a minute has passed.
func waitFor(ctx context.Context, p *proc.Process, ready func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("%s ended (%s) before it was ready; it printed:\n%s", p.Name, p.State(), p.Log(4096))
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready in time: %w; it printed:\n%s", p.Name, err, p.Log(4096))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Link is what the self-test found out about a link.
type Link struct {
	Mbit  int     `json:"mbit"`
	RTTms float64 `json:"rtt_ms"`
	// ConnectMs and ExchangeMs are times in milliseconds: of the first exchange over a
	// new connection, and of a later exchange. Each is the fastest of several. They are
	// twice the round trip and once the round trip.
	ConnectMs  float64 `json:"connect_ms"`
	ExchangeMs float64 `json:"exchange_ms"`
	// DownMbit is the rate at which content arrives.
	DownMbit float64 `json:"down_mbit"`
}

// delay starts the proxies for a round trip of rttMs milliseconds. There is one round trip at a
// time; 0 needs no proxy.
func (n *network) delay(ctx context.Context, rttMs int) error {
	if rttMs == 0 {
		return nil
	}
	for port, target := range map[int]int{delayedPort: registryPort, farPeerPort: peerPort} {
		err := n.launch(ctx, port, "delay", "-listen", n.address(port), "-target", n.address(target), "-rtt", fmt.Sprintf("%dms", rttMs))
		if err != nil {
			return err
		}
	}
	return nil
}

// test measures the link with its current limits.
func (n *network) test(ctx context.Context, mbit, rttMs int) (Link, error) {
	l := Link{Mbit: mbit, RTTms: float64(rttMs)}
	port := peerPort
	if rttMs > 0 {
		port = farPeerPort
	}
	// Other work on the machine can only make an exchange slower, so the fastest exchange
	// shows the link.
	l.ConnectMs, l.ExchangeMs = math.Inf(1), math.Inf(1)
	var ask func(size int) (float64, error)
	for range 5 {
		begin := time.Now()
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", n.address(port))
		if err != nil {
			return l, err
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		ask = asker(conn)
		if _, err := ask(1); err != nil {
			return l, err
		}
		l.ConnectMs = min(l.ConnectMs, 1e3*time.Since(begin).Seconds())
	}
	for range 10 {
		sec, err := ask(1)
		if err != nil {
			return l, err
		}
		l.ExchangeMs = min(l.ExchangeMs, 1e3*sec)
	}
	// The test transfers content for about a second, without the time of the round trip.
	// On a slow link it transfers more, because the burst that the shaper lets through at
	// once would otherwise distort the rate.
	size := max(mbit*125_000, 2_000_000)
	sec, err := ask(size)
	if err != nil {
		return l, err
	}
	l.DownMbit = float64(size) * 8 / 1e6 / (sec - l.RTTms/1e3)
	return l, nil
}

// asker returns a function that asks the peer for bytes and returns how many seconds they took.
func asker(conn net.Conn) func(size int) (float64, error) {
	r := bufio.NewReaderSize(conn, 256<<10)
	return func(size int) (float64, error) {
		begin := time.Now()
		if _, err := fmt.Fprintf(conn, "%d\n", size); err != nil {
			return 0, err
		}
		_, err := io.CopyN(io.Discard, r, int64(size))
		return time.Since(begin).Seconds(), err
	}
}

// check returns an error if the link is not as requested, because measurements over such
// a link mean nothing.
func (l Link) check() error {
	const slackMs = 15 // allowance for a busy machine
	switch {
	case l.ExchangeMs < l.RTTms || l.ExchangeMs > l.RTTms+slackMs,
		l.ConnectMs < 2*l.RTTms || l.ConnectMs > 2*l.RTTms+2*slackMs,
		l.DownMbit > 1.05*float64(l.Mbit), l.Mbit <= 100 && l.DownMbit < 0.85*float64(l.Mbit):
		return fmt.Errorf("the link is not what it should be: %s", l)
	}
	return nil
}

func (l Link) String() string {
	return fmt.Sprintf("%d Mbit/s with %.0f ms: content arrives at %.1f Mbit/s; an exchange takes %.2f ms, the first of a connection %.2f ms",
		l.Mbit, l.RTTms, l.DownMbit, l.ExchangeMs, l.ConnectMs)
}

// servePeer answers each line, which holds a number, with that many bytes.
func servePeer(ctx context.Context, listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			return ignoreClosed(err)
		}
		go func() { // ends with the process, which does nothing else
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				size, err := strconv.ParseInt(lines.Text(), 10, 64)
				if err != nil {
					return
				}
				if _, err := io.CopyN(conn, zeros{}, size); err != nil {
					return
				}
			}
		}()
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// zeros is a reader of endless zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// serveDelay is the inner command of the delaying proxy.
func serveDelay(ctx context.Context, listen string, p *netdelay.Proxy) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	return p.Serve(ctx, l)
}
