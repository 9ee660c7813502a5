package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/replicas/faults"
	"example.org/slipway/internal/backendtest"
)

const (
	// grace is the collector's grace period in these tests. It is longer than a push takes while
	// nothing is broken, and short enough for garbage to be collected meanwhile.
	grace = 20 * time.Second
	// tagBound is how stale a tag may be: 4 s from docs/replicas.md, plus the time that a
	// busy machine may take to run a process that has to notice. digestBound, 9 s, is how
	// long a deleted content may still be read by digest.
	tagBound    = 5 * time.Second
	digestBound = 10 * time.Second
	// readyTimeout is the maximum time of a start on a busy machine.
	readyTimeout = 60 * time.Second
)

// bed holds some replicas and what they share. Each replica is in its own network namespace. A
// bridge leads to the database, the store and the clients.
type bed struct {
	t      *testing.T
	net    *lan.LAN
	s3     *backendtest.S3Server
	bucket string
	// postgres takes changes. standby takes its place if necessary.
	postgres, standby *backendtest.PostgresServer
	database          string
	// store stands between all replicas and the object store.
	store    *faults.Store
	secret   string
	replicas []*replica
}

// replica is a server process that is restarted when it ends, as a service manager does.
type replica struct {
	b     *bed
	index int
	node  *lan.Node
	// addr, debug and peers are the addresses that it listens on.
	addr, debug, peers string
	// These are the links from the replica to the database's servers and the store, and from others
	// to its peers' port.
	database    []*faults.Link
	store, peer *faults.Link
	dir, config string

	mu sync.Mutex
	// down is set while the process must not run.
	down    bool
	process *proc.Process
	starts  int
	wg      sync.WaitGroup
	wake    chan struct{} // signals a change of down
}

// newBed starts n replicas on new backends and waits until they are ready. It adds more to each
// configuration.
func newBed(t *testing.T, n int, seed uint64, more string) *bed {
	t.Helper()
	tool.NeedRoot(t) // for the namespaces
	b := &bed{t: t, secret: rand.Text()}
	var err error
	if b.net, err = lan.New(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.net.Close(); err != nil {
			t.Error(err)
		}
	})
	b.s3 = backendtest.S3(t)
	b.bucket = b.s3.Bucket(t)
	b.postgres = backendtest.Postgres(t)
	b.database = b.postgres.CreateDatabase(t)
	b.standby = b.postgres.Standby(t)
	b.store = faults.NewStore(t, b.s3.Endpoint, seed)
	for i := range n {
		b.add(i, more)
	}
	b.waitReady()
	return b
}

// add starts a replica.
func (b *bed) add(index int, more string) *replica {
	b.t.Helper()
	node, err := b.net.Join(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	r := &replica{b: b, index: index, node: node, addr: node.Addr + ":5000", debug: node.Addr + ":5001", peers: node.Addr + ":5002", dir: b.t.TempDir(), wake: make(chan struct{}, 1)}
	r.database = []*faults.Link{faults.NewLink(b.t, b.net.Addr, b.postgres.Addr), faults.NewLink(b.t, b.net.Addr, b.standby.Addr)}
	r.store = faults.NewLink(b.t, b.net.Addr, b.store.Addr)
	r.peer = faults.NewLink(b.t, b.net.Addr, r.peers)
	r.config = filepath.Join(r.dir, "config.yml")
	text := fmt.Sprintf(`version: 0.1
log:
  level: info
  accesslog: {disabled: true}
storage:
  directory: %s
  s3:
    regionendpoint: http://%s
    region: %s
    bucket: %s
    accesskey: %s
    secretkey: %s
    forcepathstyle: true
  catalog:
    postgres: %s
  blob_cache: {ram: 16MiB, ssd: 64MiB}
  gc: {interval: 1s, grace: %s, short_grace: true}
  maintenance:
    uploadpurging: {enabled: true, age: 1m}
http:
  addr: %s
  insecure_open_to_network: true
  draintimeout: 5s
  debug: {addr: %s}
cluster:
  addr: %s
  url: http://%s
  id: replica-%d
  secret: %s
%s`, filepath.Join(r.dir, "root"), r.store.Addr, b.s3.Region, b.bucket, b.s3.AccessKey, b.s3.SecretKey,
		b.postgres.DSNThrough(r.database[0].Addr+","+r.database[1].Addr, b.database), grace, r.addr, r.debug, r.peers, r.peer.Addr, index, b.secret, more)
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.replicas = append(b.replicas, r)
	binary := slipway.Binary(b.t)
	r.wg.Go(func() { r.supervise(binary) })
	b.t.Cleanup(func() {
		r.setDown(true)
		r.signal(syscall.SIGKILL)
		close(r.wake)
		r.wg.Wait()
		if b.t.Failed() {
			b.t.Logf("replica %d was started %d times; the end of its log:\n%s", r.index, r.starts, tail(r.logFile(), 6<<10))
		}
	})
	return r
}

// links returns all links from the replica to others, and from its peers to it.
func (r *replica) links() []*faults.Link {
	return append(slices.Clone(r.database), r.store, r.peer)
}

func (r *replica) logFile() string { return filepath.Join(r.dir, "log") }

func tail(file string, n int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}

// supervise keeps the process running while the replica is not down. It returns when wake is
// closed.
func (r *replica) supervise(binary string) {
	for open := true; open; {
		r.mu.Lock()
		var exited <-chan struct{}
		if !r.down {
			cmd := exec.Command(binary, "serve", "--config", r.config)
			cmd.Dir, cmd.Env = r.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir}
			cmd, err := r.node.Inside(cmd)
			var p *proc.Process
			if err == nil {
				p, err = proc.Launch(cmd, r.logFile())
			}
			if err != nil {
				r.b.t.Errorf("start replica %d: %v", r.index, err)
				r.down = true
			} else {
				r.process, exited = p, p.Exited()
				r.starts++
			}
		}
		r.mu.Unlock()
		if exited != nil {
			<-exited
			r.mu.Lock()
			r.process = nil
			r.mu.Unlock()
		}
		select {
		case _, open = <-r.wake:
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// setDown decides whether the process may start. A running process continues.
func (r *replica) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// signal sends the process a signal, if there is one.
func (r *replica) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process != nil {
		r.process.Signal(s)
	}
}

// ready returns an error unless the replica says that it can serve.
func (r *replica) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.debug+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// waitReady waits until all replicas are ready.
func (b *bed) waitReady() time.Duration {
	b.t.Helper()
	begin := time.Now()
	for _, r := range b.replicas {
		err := errors.New("not asked")
		for err != nil {
			if time.Since(begin) > readyTimeout {
				b.t.Fatalf("replica %d is not ready after %s: %v; it printed:\n%s", r.index, readyTimeout, err, tail(r.logFile(), 4<<10))
			}
			if err = r.ready(b.t.Context()); err != nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	return time.Since(begin)
}

// stop ends all replicas gracefully.
func (b *bed) stop() {
	b.t.Helper()
	for _, r := range b.replicas {
		r.setDown(true)
		r.signal(syscall.SIGTERM)
	}
	for _, r := range b.replicas {
		proc.Poll(b.t, 30*time.Second, fmt.Sprintf("replica %d has ended", r.index), func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.process == nil
		})
	}
}

// run runs a subcommand of the binary with the configuration of a replica.
func (r *replica) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := slipway.Command(t, append(args, "--config", r.config)...)
	if err != nil {
		t.Errorf("slipway %s: %v; it printed:\n%s", strings.Join(args, " "), err, out)
	}
	return out
}
