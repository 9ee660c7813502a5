package tiers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/internal/backendtest"
)

// Replicas compares the cost of pulls from the caches of three replicas with the cost of
// pulls from one.
type Replicas struct {
	Run   measure.Run    `json:"run"`
	Cases []ReplicasCase `json:"cases"`
}

// ReplicasCase is one way in which replicas share their caches or keep them separate.
// Figures are by round.
type ReplicasCase struct {
	Name  string         `json:"name"`
	One   ReplicasRounds `json:"one"`
	Three ReplicasRounds `json:"three"`
}

// ReplicasRounds are CPU milliseconds of all servers together for a pull, and pulls per second.
type ReplicasRounds struct {
	CPU  []float64 `json:"cpu_ms"`
	Rate []float64 `json:"pulls_per_second"`
}

const (
	replicaCount  = 3
	replicaImages = 30
	replicaLayers = 5
	replicaLayer  = 64 << 10 // large enough for an object: the catalogue keeps up to 16 KiB itself
	replicaRepo   = "bench/replicas"
	replicaPulls  = 4 // concurrent pulls from each replica
)

// shared is the part of the replicas' configuration that says how they share.
type shared struct{ name, cluster string }

func runReplicas(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Replicas{}
	h := newHost(b)
	defer h.close()
	s, err := started(h, backendtest.S3)
	if err != nil {
		return err
	}
	db, err := started(h, func(t testing.TB) *backendtest.PostgresServer { return backendtest.Postgres(t) })
	if err != nil {
		return err
	}
	for _, c := range []shared{{name: "each its own cache"}, {name: "homes and peer reads", cluster: rand.Text()}} {
		bucket, err := started(h, func(t testing.TB) string { return s.Bucket(t) })
		if err != nil {
			return err
		}
		dsn, err := started(h, func(t testing.TB) string { return db.DSN(db.CreateDatabase(t)) })
		if err != nil {
			return err
		}
		storage := s3(s3Name, s.Endpoint, bucket, s).driver + fmt.Sprintf("  memory: 64MiB\n  catalog: {postgres: %q}\n  blob_cache: {ram: 256MiB, ssd: 0, large: 64MiB}\n", dsn)
		if err := out.one(b, ctx, c, storage); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	out.Run = b.Since(began)
	b.results.Replicas = out
	return nil
}

// one measures replicas that share in one way.
func (x *Replicas) one(b *bench, ctx context.Context, how shared, storage string) error {
	var all []*server
	for i := range replicaCount {
		text := storage
		if how.cluster != "" {
			addr, err := slipway.FindAddr()
			if err != nil {
				return err
			}
			text += fmt.Sprintf("cluster: {addr: %q, url: %q, id: replica-%d, secret: %s}\n", addr, "http://"+addr, i, how.cluster)
		}
		dir := b.NewDir()
		defer b.Remove(dir)
		r, err := b.serve(ctx, fmt.Sprintf("replica %d", i), dir, text)
		if err != nil {
			return err
		}
		defer r.stop()
		all = append(all, r)
	}
	images, err := pushImages(ctx, all[0])
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: replicaPulls * replicaCount, DisableCompression: true}}
	defer client.CloseIdleConnections()
	buf := make([]byte, 256<<10)
	for range 2 { // so that each cache holds what is requested later
		for _, r := range all {
			for _, m := range images {
				if err := m.pull(ctx, client, r, buf); err != nil {
					return err
				}
			}
		}
	}
	c := ReplicasCase{Name: how.name}
	for round := range b.Run.Rounds {
		order := []int{1, replicaCount}
		if round%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, n := range order {
			cpu, rate, err := pulls(ctx, client, all[:n], images, pick(b, 4*time.Second, time.Second))
			if err != nil {
				return err
			}
			to := &c.One
			if n > 1 {
				to = &c.Three
			}
			to.CPU, to.Rate = append(to.CPU, cpu), append(to.Rate, rate)
		}
	}
	b.Logf("%-22s one: %s ms, %s pulls/s; three: %s ms, %s pulls/s", how.name, measure.SpreadOf(c.One.CPU), measure.SpreadOf(c.One.Rate),
		measure.SpreadOf(c.Three.CPU), measure.SpreadOf(c.Three.Rate))
	x.Cases = append(x.Cases, c)
	return nil
}

// replicaImage is a pushed image.
type replicaImage struct {
	manifest string // digest
	size     int64
	blobs    []measure.Content
}

// pushImages pushes images. Their configuration is a layer like the others.
func pushImages(ctx context.Context, r *server) ([]replicaImage, error) {
	var out []replicaImage
	for i := range replicaImages {
		var m replicaImage
		type descriptor struct {
			MediaType string `json:"mediaType"`
			Digest    string `json:"digest"`
			Size      int64  `json:"size"`
		}
		doc := struct {
			SchemaVersion int          `json:"schemaVersion"`
			MediaType     string       `json:"mediaType"`
			Config        descriptor   `json:"config"`
			Layers        []descriptor `json:"layers"`
		}{SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json"}
		for j := range replicaLayers + 1 {
			c := measure.NewContent(uint64(1000+i*100+j), replicaLayer)
			if err := r.push(ctx, replicaRepo, c); err != nil {
				return nil, err
			}
			m.blobs = append(m.blobs, c)
			d := descriptor{"application/vnd.oci.image.layer.v1.tar", c.Digest, c.Size}
			if j == 0 {
				d.MediaType = "application/vnd.oci.image.config.v1+json"
				doc.Config = d
			} else {
				doc.Layers = append(doc.Layers, d)
			}
		}
		text, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		m.manifest, m.size = fmt.Sprintf("sha256:%x", sha256.Sum256(text)), int64(len(text))
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+r.Addr+"/v2/"+replicaRepo+"/manifests/"+m.manifest, strings.NewReader(string(text)))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", doc.MediaType)
		resp, err := r.http.Do(req)
		if err != nil {
			return nil, err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			return nil, fmt.Errorf("push of a manifest: status %d", resp.StatusCode)
		}
		out = append(out, m)
	}
	return out, nil
}

// pull downloads a whole image.
func (m *replicaImage) pull(ctx context.Context, client *http.Client, r *server, buf []byte) error {
	if _, err := measure.Get(ctx, client, "http://"+r.Addr+"/v2/"+replicaRepo+"/manifests/"+m.manifest, m.size, buf); err != nil {
		return err
	}
	for _, c := range m.blobs {
		if _, err := measure.Get(ctx, client, r.url(replicaRepo, c.Digest), c.Size, buf); err != nil {
			return err
		}
	}
	return nil
}

// pulls makes some clients pull for a time, each image from the next replica.
func pulls(ctx context.Context, client *http.Client, from []*server, images []replicaImage, long time.Duration) (cpuMs, rate float64, err error) {
	var meters []*measure.Meter
	for _, r := range from {
		m, err := r.meter()
		if err != nil {
			return 0, 0, err
		}
		meters = append(meters, m)
	}
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		n    int
		errs []error
	)
	end := time.Now().Add(long)
	for k := range replicaPulls * len(from) {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for i := k; time.Now().Before(end); i++ {
				err := images[(i*7+k)%len(images)].pull(ctx, client, from[i%len(from)], buf)
				mu.Lock()
				n++
				errs = append(errs, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, 0, err
	}
	var cpu, elapsed float64
	for _, m := range meters {
		u, err := m.Stop()
		if err != nil {
			return 0, 0, err
		}
		cpu, elapsed = cpu+u.Server.Seconds(), u.Elapsed.Seconds()
	}
	return cpu * 1e3 / float64(n), float64(n) / elapsed, nil
}

// Title is the heading.
func (x *Replicas) Title() string { return "Three replicas and one" }

// Head says how the part was measured.
func (x *Replicas) Head() string { return x.Run.Head() }

// About says what was done.
func (x *Replicas) About() string {
	return fmt.Sprintf("Three registries share a bucket of versitygw and a database of PostgreSQL, all on one machine. %d clients for each registry that is used pull %d images (a manifest and %d blobs of 64 KiB each) that are in the caches, alternately from the first registry alone and from all three. "+
		"CPU is the sum over the registries that got requests. With homes each blob is cached by one of the three, and the two others read two of three blobs from their peers.", replicaPulls, replicaImages, replicaLayers+1)
}

// Targets returns the target that three replicas cost as much as one.
func (x *Replicas) Targets() []measure.Target {
	var t measure.Target
	if len(x.Cases) > 0 {
		t = measure.TargetOf("replicas", "", 1.1, false, ratios(x.Cases[0].Three.CPU, x.Cases[0].One.CPU))
	}
	t.Scenario, t.What, t.Limit, t.Missing = "replicas", "CPU of a cached pull, three replicas / one", 1.1, len(x.Cases) == 0
	return []measure.Target{t}
}

// Write writes the table.
func (x *Replicas) Write(w *strings.Builder) {
	var rows [][]string
	for _, c := range x.Cases {
		rows = append(rows, []string{c.Name, measure.SpreadOf(c.One.CPU).String(), measure.SpreadOf(c.Three.CPU).String(),
			measure.SpreadOf(c.One.Rate).String(), measure.SpreadOf(c.Three.Rate).String()})
	}
	measure.Table(w, 1, []string{"caches", "CPU ms a pull, one", "three", "pulls/s, one", "three"}, rows)
}

// Pictures returns no pictures.
func (x *Replicas) Pictures() []measure.Picture { return nil }
