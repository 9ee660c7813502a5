package serve_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/notify"
	"example.org/slipway/serve"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func drop(t *testing.T, a *admin.Admin, digests ...string) {
	t.Helper()
	var args dataroot.CacheDropArgs
	for _, d := range digests {
		args.Digests = append(args.Digests, oci.Digest(d))
	}
	if rep, err := a.DropCached(t.Context(), args); err != nil || rep.Dropped != len(digests) {
		t.Fatalf("drop: %+v, %v", rep, err)
	}
}

// freeAddr returns an address on which nobody listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	port, err := backendtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// TestReplicas runs two servers with one catalogue and one store. What one learns, the other knows,
// and a blob is read from the store once for both.
func TestReplicas(t *testing.T) {
	t.Parallel()
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	c := countRequests(t, s3.Endpoint)
	storage := s3Yaml(t, s3, c.addr, "  blob_cache: {ram: 64MiB, large: 32MiB, write_through: false}\n  prefetch: {mode: off}\n"+
		fmt.Sprintf("  catalog: {postgres: %q}\n", postgres.DSN(postgres.CreateDatabase(t))))
	var servers []*instance
	for i := range 2 {
		servers = append(servers, start(t, setup{yaml: storage + fmt.Sprintf("cluster: {addr: %q, id: r%d, secret: 0123456789abcdef}\n", freeAddr(t), i)}))
	}
	for _, s := range servers {
		a, _ := openAdmin(t, s.cfg)
		poll(t, "the servers know each other", func() bool {
			st, err := a.CacheStatus(t.Context())
			return err == nil && len(st.Servers) == 2
		})
	}
	for range 4 { // the home of some is one server, of others the other
		layer := layerOf(200 << 10)
		d := servers[0].pushImage("a", "v1", layer)
		before := c.reads(digestOf(layer))
		for _, s := range servers {
			poll(t, "the tag is known", func() bool {
				return s.want(200, "GET", "/v2/a/manifests/v1", "").header.Get("Docker-Content-Digest") == d
			})
			if got := s.want(200, "GET", "/v2/a/blobs/"+digestOf(layer), "").body; got != layer {
				t.Fatalf("got %d bytes that are not the layer's", len(got))
			}
		}
		if got := c.reads(digestOf(layer)) - before; got != 1 {
			t.Errorf("the store was read %d times for two servers, want once", got)
		}
	}
}

// TestReplicasDeliverOnce checks that one of two servers with one queue delivers, each event once,
// and that the other continues when that one stops.
func TestReplicasDeliverOnce(t *testing.T) {
	t.Parallel()
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	hook := newReceiver(t)
	hook.up.Store(true)
	yaml := s3Yaml(t, s3, s3.Endpoint, fmt.Sprintf("  catalog: {postgres: %q}\n", postgres.DSN(postgres.CreateDatabase(t)))) +
		fmt.Sprintf("notifications: {endpoints: [{name: a, url: %q, secret: %s, headers: {X-Extra: ['1']}, ignore: {actions: [pull]}}]}\n", hook.URL, hook.secret)
	a, b := start(t, setup{yaml: yaml}), start(t, setup{yaml: yaml})
	a.pushImage("a", "v1", "one")
	b.pushImage("b", "v1", "two")
	poll(t, "the events are there", func() bool { return len(hook.got()) == 4 })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	b.pushImage("b", "v2", "three")
	poll(t, "the other server delivers", func() bool { return len(hook.got()) == 6 })
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if n := len(hook.got()); n != 6 {
		t.Errorf("%d events were delivered, want 6", n)
	}
}

// TestReplicasWebhooks checks that a webhook which one of two servers adds, pauses and removes gets
// the events of both, within seconds.
func TestReplicasWebhooks(t *testing.T) {
	t.Parallel()
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	hook := newPlainReceiver(t)
	yaml := s3Yaml(t, s3, s3.Endpoint, fmt.Sprintf("  catalog: {postgres: %q}\n", postgres.DSN(postgres.CreateDatabase(t)))) + "notifications: {networks: [127.0.0.1]}\n"
	servers := []*instance{start(t, setup{yaml: yaml}), start(t, setup{yaml: yaml})}
	var admins []*admin.Admin
	for _, s := range servers {
		a, closeAdmin := openAdmin(t, s.cfg)
		defer closeAdmin()
		admins = append(admins, a)
	}
	knows := func(state string, is func([]notify.EndpointStatus) bool) {
		t.Helper()
		began := time.Now()
		poll(t, "the other server knows that the webhook is "+state, func() bool {
			rep, err := admins[1].Webhooks(t.Context())
			return err == nil && is(rep.Webhooks)
		})
		t.Logf("%s after %s", state, time.Since(began))
	}
	if _, err := admins[0].AddWebhook(t.Context(), notify.Change{Name: "ci", URL: &hook.URL, Secret: &hook.secret}); err != nil {
		t.Fatal(err)
	}
	knows("added", func(list []notify.EndpointStatus) bool { return len(list) == 1 && !list[0].Paused })
	servers[1].pushImage("b", "v1", "one")
	servers[0].pushImage("a", "v1", "two")
	poll(t, "the events of both are there", func() bool { return len(hook.got()) == 2 })
	yes := true
	if _, err := admins[0].ChangeWebhook(t.Context(), notify.Change{Name: "ci", Paused: &yes}); err != nil {
		t.Fatal(err)
	}
	knows("paused", func(list []notify.EndpointStatus) bool { return len(list) == 1 && list[0].Paused })
	servers[1].pushImage("b", "v2", "three")
	if err := admins[1].RemoveWebhook(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	poll(t, "the first server knows of the removal", func() bool {
		rep, err := admins[0].Webhooks(t.Context())
		return err == nil && len(rep.Webhooks) == 0
	})
	if got := hook.got(); len(got) != 2 {
		t.Errorf("a paused webhook got %q", got)
	}
}

// TestStoreMetrics checks that the metrics of the layers before an object store are documented.
func TestStoreMetrics(t *testing.T) {
	t.Parallel()
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	storage := s3Yaml(t, s3, s3.Endpoint, withRAM+"  redirect: {mode: large}\n"+fmt.Sprintf("  catalog: {postgres: %q}\n", postgres.DSN(postgres.CreateDatabase(t))))
	s := start(t, setup{yaml: storage + fmt.Sprintf("cluster: {addr: %q, id: r0, secret: 0123456789abcdef}\nnotifications: {endpoints: [{name: a, url: \"http://%s\"}]}\n", freeAddr(t), freeAddr(t))})
	s.pushImage("a", "v1", layerOf(100<<10))
	a, _ := openAdmin(t, s.cfg)
	if _, err := a.Collect(t.Context(), dataroot.GCArgs{}, nil); err != nil { // counts runs from the first on
		t.Fatal(err)
	}
	documented(t, s.want(200, "GET", s.debug+"/metrics", "").body,
		append([]string{"registry_notifications_status_total", "registry_storage_errors_total", "registry_storage_retries_total"}, ofNamespaces...), "operating.md", "caching.md")
}

// TestMoveCatalog moves the catalogue from a directory to PostgreSQL while pulls go on.
func TestMoveCatalog(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	s3, postgres := backendtest.S3(t), backendtest.Postgres(t)
	bucket := s3.Bucket(t)
	o := setup{yaml: s3YamlOf(s3, bucket, s3.Endpoint, withRAM), root: filepath.Join(t.TempDir(), "root")}
	s := start(t, o)
	layer := layerOf(200 << 10)
	d := s.pushImage("a", "v1", layer)
	a, closeAdmin := openAdmin(t, s.cfg)
	if _, err := a.MoveCatalog(t.Context(), admin.MoveArgs{To: "postgres://nobody:hush@" + postgres.Addr + "/none?sslmode=disable"}, nil); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("a move to nowhere: %v", err)
	}
	s.pushImage("a", "after-a-failure", layer)
	dsn := postgres.DSN(postgres.CreateDatabase(t))
	rep, err := a.MoveCatalog(t.Context(), admin.MoveArgs{To: dsn}, nil)
	if err != nil || !rep.Served {
		t.Fatalf("move: %+v, %v", rep, err)
	}
	s.want(200, "GET", "/v2/a/blobs/"+digestOf(layer), "")
	refused := s.want(503, "POST", "/v2/a/blobs/uploads/", "")
	if refused.header.Get("Retry-After") == "" {
		t.Error("a refused push is not told when to come again")
	}
	s.want(503, "PUT", "/v2/a/manifests/v2", imageOf(layer), isManifest)
	s.want(503, "DELETE", "/v2/a/manifests/"+d, "")
	if _, err := a.Collect(t.Context(), dataroot.GCArgs{}, nil); err == nil {
		t.Error("garbage was collected after the move")
	}
	if _, err := a.MoveCatalog(t.Context(), admin.MoveArgs{To: dsn}, nil); err == nil {
		t.Error("the catalogue was moved twice")
	}
	closeAdmin()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.New(t.Context(), configure(t, o), nil); err == nil || !strings.Contains(err.Error(), "was moved to PostgreSQL") {
		t.Errorf("a start with the old catalogue: %v", err)
	}
	o.yaml = s3YamlOf(s3, bucket, s3.Endpoint, withRAM+fmt.Sprintf("  catalog: {postgres: %q}\n", dsn))
	s = start(t, o)
	s.want(200, "GET", "/v2/a/manifests/after-a-failure", "")
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	o.root = filepath.Join(t.TempDir(), "another machine")
	s = start(t, o)
	if got := s.want(200, "GET", "/v2/a/manifests/after-a-failure", "").header.Get("Docker-Content-Digest"); got != d {
		t.Errorf("the tag is at %s, want %s", got, d)
	}
	if got := s.want(200, "GET", "/v2/a/blobs/"+digestOf(layer), "").body; got != layer {
		t.Errorf("got %d bytes that are not the layer's", len(got))
	}
	s.pushImage("a", "v2", layer)
	a, _ = openAdmin(t, s.cfg)
	if _, err := a.MoveCatalog(t.Context(), admin.MoveArgs{To: dsn}, nil); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a move from PostgreSQL: %v", err)
	}
	if got := s.do("GET", "/v2/", "").status; got != http.StatusOK {
		t.Errorf("after a refused move: status %d", got)
	}
	s.pushImage("a", "v3", layer) // writes go on
}
