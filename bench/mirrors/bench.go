package mirrors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/wire"
)

// bench is a run of some scenarios.
type bench struct {
	*measure.Bench
	o        *options
	results  *Results
	upstream *rival.Server
	large    *large
}

// These are the names of the mirrors in the results, and Slipway's name for the upstream.
const (
	nameSlipway     = "slipway"
	nameOciregistry = "Ociregistry"
	upstreamName    = "upstream"
)

// startUpstream starts the registry that is mirrored, on a directory that may have been used
// before.
func (b *bench) startUpstream(ctx context.Context, dir string) error {
	spec := rival.Distribution3("Distribution 3")
	if spec.Binary == "" {
		b.Logf("%s: the upstream is what Debian has", spec.Why)
		if spec = rival.Distribution2("Distribution 2.8"); spec.Binary == "" {
			return errors.New(spec.Why)
		}
	}
	var err error
	b.upstream, err = rival.Start(ctx, spec, dir)
	return err
}

// mirrors returns the servers that are compared, as mirrors of a registry at host:port.
func (b *bench) mirrors(upstream string) []*rival.Spec {
	return []*rival.Spec{rival.SlipwayMirror(nameSlipway, b.Binary, upstreamName, upstream), rival.Ociregistry(nameOciregistry, upstream)}
}

// slipway starts Slipway on a new directory as a mirror of a registry at host:port.
func (b *bench) slipway(ctx context.Context, upstream string) (*rival.Server, error) {
	return rival.Start(ctx, b.mirrors(upstream)[0], b.NewDir())
}

// end stops a server and removes its directory.
func (b *bench) end(s *rival.Server) {
	s.Stop()
	b.Remove(s.Dir)
}

// since completes the description of a run that began at the given time.
func (b *bench) since(ctx context.Context, began time.Time, mirrors []*rival.Spec) Run {
	r := Run{Run: b.Since(began), Servers: []string{"Upstream: " + b.upstream.Name + ", " + b.upstream.Version(ctx)}}
	for _, s := range mirrors {
		if s.Binary == "" {
			r.Servers = append(r.Servers, s.Name+": not measured: "+s.Why)
		} else {
			r.Servers = append(r.Servers, s.Name+": "+s.Version(ctx))
		}
	}
	return r
}

// large is an image with one large layer.
type large struct {
	repo     string
	manifest string // its digest
	layer    measure.Content
}

// largeImage returns the large image. It first pushes the image to the upstream if it is not there.
func (b *bench) largeImage(ctx context.Context) (*large, error) {
	if b.large != nil {
		return b.large, nil
	}
	l := &large{repo: fmt.Sprintf("bench/large%d", b.o.sizeMiB), layer: measure.NewContent(1, b.o.sizeMiB<<20)}
	config := imagetest.NewBlob(imagetest.TypeConfig, []byte(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["`+l.layer.Digest+`"]}}`))
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[{"mediaType":%q,"digest":%q,"size":%d}]}`,
		imagetest.TypeManifest, config.MediaType, config.Digest, config.Size, imagetest.TypeLayerTar, l.layer.Digest, l.layer.Size)
	l.manifest = wire.Digest(manifest)
	c := wire.New(b.upstream.Addr)
	defer c.Close()
	if _, err := c.GetManifest(ctx, l.repo, l.manifest); err == nil {
		b.large = l
		return l, nil
	}
	b.Logf("pushing a layer of %d MiB to the upstream", b.o.sizeMiB)
	if err := pushContent(ctx, c, l.repo, l.layer); err != nil {
		return nil, err
	}
	if _, err := c.PushBlob(ctx, l.repo, config.Data); err != nil {
		return nil, err
	}
	if _, err := c.PutManifest(ctx, l.repo, "v1", imagetest.TypeManifest, manifest); err != nil {
		return nil, err
	}
	b.large = l
	return l, nil
}

// pushContent uploads a blob without holding it in memory.
func pushContent(ctx context.Context, c *wire.Client, repo string, content measure.Content) error {
	location, err := c.StartUpload(ctx, repo)
	if err != nil {
		return err
	}
	if location, err = wire.WithDigest(location, content.Digest); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, location, content.Reader())
	if err != nil {
		return err
	}
	req.ContentLength = content.Size
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // only the status matters
		return fmt.Errorf("push of %s: status %d: %s", content.Digest, resp.StatusCode, text)
	}
	return nil
}
