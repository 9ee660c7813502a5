package backendtest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"
)

// SwiftServer is OpenStack Swift on this machine: a proxy with tempauth, and one account,
// container and object server with one replica of everything. It runs no replicators and
// updaters, because with one replica there is nothing to repair.
type SwiftServer struct {
	// AuthURL is where tempauth issues tokens, version 1.
	AuthURL string
	// User and Key belong to an administrator of the account. Account is its name.
	User, Key, Account string
	// Guest and GuestKey belong to a user without any rights at first.
	Guest, GuestKey string
	// StorageURL is the address of the account.
	StorageURL string
	// Dir holds configuration, data and logs.
	Dir string

	proxy, account, container, object, memcached *Daemon
	ports                                        swiftPorts
}

type swiftPorts struct{ Proxy, Account, Container, Object, Memcached int }

// SwiftMaxSegments is how many segments a manifest may have. It is small, so that tests
// reach the limit.
const SwiftMaxSegments = 10

// swiftPrograms are the programs that Swift needs, from the Debian packages swift-proxy,
// swift-account, swift-container, swift-object and memcached. The servers read limits and
// the salt of their hashes from /etc/swift/swift.conf, which the packages install,
// wherever their other configuration lies.
var swiftPrograms = [...]string{"swift-proxy-server", "swift-account-server", "swift-container-server", "swift-object-server", "memcached"}

// Swift starts Swift with an empty account, and stops it when the test ends. The start
// takes a few seconds, so a package should start it once. The test is skipped if the
// programs are missing.
func Swift(t testing.TB) *SwiftServer {
	t.Helper()
	paths := make(map[string]string)
	for _, name := range swiftPrograms {
		paths[name] = tool(t, name)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// Do not use a tmpfs: on one, Swift answered 404 for an object that was being
	// replaced. It lists a directory to find the newest file of an object.
	s := &SwiftServer{Dir: shortDirIn(t, os.Getenv("SLIPWAY_TEST_DISK")), User: "test:tester", Key: "testing", Guest: "test:guest", GuestKey: "guesting", Account: "AUTH_test"}
	s.ports = swiftPorts{Proxy: freePort(t), Account: freePort(t), Container: freePort(t), Object: freePort(t), Memcached: freePort(t)}
	base := fmt.Sprintf("http://127.0.0.1:%d", s.ports.Proxy)
	s.AuthURL, s.StorageURL = base+"/auth/v1.0", base+"/v1/"+s.Account
	s.configure(t, me.Username)
	s.sink(t)
	run := func(name string, args ...string) *Daemon {
		// The servers start at the same time. The code below waits for them.
		return start(t, s.Dir, func() *exec.Cmd { return exec.Command(paths[name], args...) }, func(context.Context) error { return nil })
	}
	// Cleanup stops them in the reverse order, so the proxy stops first.
	s.memcached = run("memcached", "-u", me.Username, "-l", "127.0.0.1", "-p", fmt.Sprint(s.ports.Memcached), "-U", "0", "-m", "64")
	s.account = run("swift-account-server", s.conf("account"))
	s.container = run("swift-container-server", s.conf("container"))
	s.object = run("swift-object-server", s.conf("object"))
	s.proxy = run("swift-proxy-server", s.conf("proxy"))
	s.await()
	return s
}

func (s *SwiftServer) conf(server string) string { return filepath.Join(s.Dir, server+".conf") }

// swiftPart is one of the servers, with the function that reports when it is ready.
type swiftPart struct {
	d     *Daemon
	ready func(context.Context) error
}

func (s *SwiftServer) parts() []swiftPart {
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	return []swiftPart{
		{s.memcached, answers("tcp", at(s.ports.Memcached))},
		{s.account, healthy(at(s.ports.Account))},
		{s.container, healthy(at(s.ports.Container))},
		{s.object, healthy(at(s.ports.Object))},
		{s.proxy, healthy(at(s.ports.Proxy))},
	}
}

// healthy returns a ready function: the server reports that it is healthy.
func healthy(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthcheck", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("healthcheck of %s: %s", addr, resp.Status)
		}
		return nil
	}
}

func (s *SwiftServer) await() {
	s.proxy.t.Helper()
	for _, p := range s.parts() {
		p.d.await(p.ready)
	}
}

// Stop ends all servers. Their data stays.
func (s *SwiftServer) Stop() {
	parts := s.parts()
	for i := len(parts) - 1; i >= 0; i-- {
		parts[i].d.Stop()
	}
}

// Start starts all servers again at the same addresses. Earlier tokens are lost.
func (s *SwiftServer) Start() {
	s.proxy.t.Helper()
	for _, p := range s.parts() {
		p.d.Start(func(context.Context) error { return nil })
	}
	s.await()
}

// KillObject ends the object server with SIGKILL. Listings and tokens still work.
func (s *SwiftServer) KillObject() { s.object.Kill() }

// StartObject starts the object server again.
func (s *SwiftServer) StartObject() {
	s.object.t.Helper()
	s.object.Start(s.parts()[3].ready)
}

// ForgetTokens makes all tokens issued so far invalid.
func (s *SwiftServer) ForgetTokens() error {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.ports.Memcached), 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "flush_all\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "OK\r\n" {
		return errors.Join(fmt.Errorf("memcached answers %q to flush_all", answer), err)
	}
	return nil
}

// sink collects Swift's log. Swift writes only to syslog, and without this socket the
// lines would go to the UDP port of a syslog daemon.
func (s *SwiftServer) sink(t testing.TB) {
	t.Helper()
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(s.Dir, "log.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(s.Dir, "swift.log"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return // the listener is closed below
			}
			fmt.Fprintf(file, "%s\n", bytes.TrimRight(buf[:n], "\x00\n"))
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		file.Close()
		if !t.Failed() {
			return
		}
		if b, err := os.ReadFile(file.Name()); err == nil {
			t.Logf("log of Swift:\n%s", b[max(0, len(b)-8<<10):])
		}
	})
}

// configure writes the configuration and the rings.
func (s *SwiftServer) configure(t testing.TB, me string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(s.Dir, "srv", "d1"), 0o755))
	write := func(name, text string) {
		t.Helper()
		var out strings.Builder
		must(template.Must(template.New(name).Parse(text)).Execute(&out, map[string]any{
			"Dir": s.Dir, "Me": me, "Ports": s.ports, "MaxSegments": SwiftMaxSegments,
			"Server": strings.TrimSuffix(name, ".conf"), "Port": map[string]int{
				"account.conf": s.ports.Account, "container.conf": s.ports.Container, "object.conf": s.ports.Object, "proxy.conf": s.ports.Proxy,
			}[name],
		}))
		must(os.WriteFile(filepath.Join(s.Dir, name), []byte(out.String()), 0o644))
	}
	write("proxy.conf", swiftBase+swiftProxy)
	for server, port := range map[string]int{"account": s.ports.Account, "container": s.ports.Container, "object": s.ports.Object} {
		write(server+".conf", swiftBase+swiftStorage)
		must(writeRing(filepath.Join(s.Dir, server+".ring.gz"), port))
	}
}

// ringPower is the number of bits that choose a partition.
const ringPower = 4

// writeRing writes a ring of one device and one replica. The format is version 1 of
// Swift's: a gzip file with "R1NG", the version, the length of a JSON text, that text,
// and for each replica the device of each partition, in 16 bits each.
func writeRing(path string, port int) error {
	about, err := json.Marshal(map[string]any{
		"devs": []map[string]any{{
			"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1.0, "meta": "",
			"replication_ip": "127.0.0.1", "replication_port": port,
		}},
		"part_shift": 32 - ringPower, "replica_count": 1, "byteorder": "little", "version": 1,
	})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	for _, part := range []any{[]byte("R1NG"), uint16(1), uint32(len(about)), about, make([]uint16, 1<<ringPower)} {
		if err := binary.Write(z, binary.BigEndian, part); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// swiftBase has time-outs for machines that are busy with other tests. A listing that
// lacks an object because its update timed out would stay that way.
const swiftBase = `[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {{.Port}}
user = {{.Me}}
swift_dir = {{.Dir}}
devices = {{.Dir}}/srv
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
workers = 0
log_level = WARNING
log_address = {{.Dir}}/log.sock
conn_timeout = 20
node_timeout = 60
client_timeout = 120
container_update_timeout = 60
`

const swiftStorage = `[pipeline:main]
pipeline = healthcheck {{.Server}}-server
[app:{{.Server}}-server]
use = egg:swift#{{.Server}}
conn_timeout = 20
node_timeout = 60
[filter:healthcheck]
use = egg:swift#healthcheck
`

// swiftProxy avoids a failed server only for a short time.
const swiftProxy = `[pipeline:main]
pipeline = catch_errors healthcheck cache bulk tempurl tempauth copy container-quotas slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
conn_timeout = 20
node_timeout = 60
recoverable_node_timeout = 60
client_timeout = 120
error_suppression_interval = 0.1
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{{.Ports.Memcached}}
[filter:bulk]
use = egg:swift#bulk
[filter:tempurl]
use = egg:swift#tempurl
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
user_test_guest = guesting
storage_url_scheme = default
[filter:copy]
use = egg:swift#copy
[filter:container-quotas]
use = egg:swift#container_quotas
[filter:slo]
use = egg:swift#slo
max_manifest_segments = {{.MaxSegments}}
rate_limit_under_size = 0
[filter:dlo]
use = egg:swift#dlo
`
