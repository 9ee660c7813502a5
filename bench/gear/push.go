package gear

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/internal/wire"
)

const (
	// pushedAtOnce is the number of layers of an image that are pushed at the same time, as Docker
	// does.
	pushedAtOnce = 3
	// indexTimeout bounds the time until a layer's index exists.
	indexTimeout = 10 * time.Minute
)

// do sends a request and returns an error unless the status is want. The caller closes the body.
func (s *server) do(ctx context.Context, want int, method, url string, header http.Header, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.ContentLength = size
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // only the status matters
		resp.Body.Close()
		return nil, &wire.StatusError{Method: method, Path: url, Status: resp.StatusCode, Body: string(text)}
	}
	return resp, nil
}

// pushBlob uploads a file as Docker does, in one PATCH and a PUT, unless the repository has it. It
// reports whether it uploaded the file.
func (s *server) pushBlob(ctx context.Context, repo, digest, path string) (bool, error) {
	if resp, err := s.do(ctx, http.StatusOK, http.MethodHead, s.url(repo, "blobs/"+digest), nil, nil, 0); err == nil {
		resp.Body.Close()
		return false, nil
	} else if wire.StatusOf(err) != http.StatusNotFound {
		return false, err
	}
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	return true, s.upload(ctx, repo, digest, f, fi.Size())
}

// upload uploads a blob.
func (s *server) upload(ctx context.Context, repo, digest string, body io.Reader, size int64) error {
	resp, err := s.do(ctx, http.StatusAccepted, http.MethodPost, s.url(repo, "blobs/uploads/"), nil, nil, 0)
	if err != nil {
		return err
	}
	resp.Body.Close()
	location, err := s.location(resp)
	if err != nil {
		return err
	}
	octets := http.Header{"Content-Type": {"application/octet-stream"}}
	if resp, err = s.do(ctx, http.StatusAccepted, http.MethodPatch, location, octets, body, size); err != nil {
		return err
	}
	resp.Body.Close()
	if location, err = s.location(resp); err == nil {
		location, err = wire.WithDigest(location, digest)
	}
	if err != nil {
		return err
	}
	if resp, err = s.do(ctx, http.StatusCreated, http.MethodPut, location, octets, http.NoBody, 0); err != nil {
		return err
	}
	return resp.Body.Close()
}

// location returns the URL at which an upload continues according to an answer.
func (s *server) location(resp *http.Response) (string, error) {
	u, err := url.Parse("http://" + s.addr)
	if err != nil {
		return "", err
	}
	u, err = u.Parse(resp.Header.Get("Location"))
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// pushImage pushes an image, with its layers in parallel. It returns when the manifest has been
// answered.
func (s *server) pushImage(ctx context.Context, im *image, repo, tag string) (answered time.Time, err error) {
	slots := make(chan struct{}, pushedAtOnce)
	errs := make([]error, len(im.Layers))
	var wg sync.WaitGroup
	for i, l := range im.Layers {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, errs[i] = s.pushBlob(ctx, repo, l.Digest, im.Blob(l.Digest))
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return answered, fmt.Errorf("push %s: %w", im, err)
	}
	if _, err := s.pushBlob(ctx, repo, im.Config.Digest, im.Blob(im.Config.Digest)); err != nil {
		return answered, fmt.Errorf("push %s: %w", im, err)
	}
	if err := s.putManifest(ctx, repo, tag, im.ManifestType, im.Manifest); err != nil {
		return answered, fmt.Errorf("push %s: %w", im, err)
	}
	return time.Now(), nil
}

func (s *server) putManifest(ctx context.Context, repo, tag, mediaType string, data []byte) error {
	resp, err := s.do(ctx, http.StatusCreated, http.MethodPut, s.url(repo, "manifests/"+tag),
		http.Header{"Content-Type": {mediaType}}, strings.NewReader(string(data)), int64(len(data)))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// index returns the name of a layer's index. ok is false while the index is being made.
func (s *server) index(ctx context.Context, repo, layer string) (name string, ok bool, err error) {
	resp, err := s.do(ctx, http.StatusOK, http.MethodHead, s.gear(repo, "layers/"+layer), nil, nil, 0)
	if wire.StatusOf(err) == http.StatusNotFound {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	resp.Body.Close()
	return resp.Header.Get("Slipway-Gear-Name"), true, nil
}

// waitIndex waits for a layer's index, asking every few milliseconds, and returns its name. A
// failed conversion is an error.
func (s *server) waitIndex(ctx context.Context, repo, layer string) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(pause*5/4, 50*time.Millisecond) {
		name, ok, err := s.index(ctx, repo, layer)
		if err != nil {
			return "", err
		}
		if ok {
			return name, nil
		}
		if pause == 50*time.Millisecond { // only the body says that it failed
			if err := s.conversionFailed(ctx, repo, layer); err != nil {
				return "", err
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("the index of layer %s did not come: %w", layer, ctx.Err())
		case <-s.process.Exited():
			return "", fmt.Errorf("the server ended: %s; it printed:\n%s", s.process.State(), s.process.Log(4096))
		case <-time.After(pause):
		}
	}
}

func (s *server) conversionFailed(ctx context.Context, repo, layer string) error {
	resp, err := s.do(ctx, http.StatusOK, http.MethodGet, s.gear(repo, "layers/"+layer), nil, nil, 0)
	if err == nil {
		return resp.Body.Close()
	}
	var e *wire.StatusError
	if errors.As(err, &e) && strings.Contains(e.Body, `"failed"`) {
		return fmt.Errorf("layer %s: %w", layer, err)
	}
	return nil
}

// waitIndexes waits for the indexes of all layers of an image, and returns their names by layer.
func (s *server) waitIndexes(ctx context.Context, repo string, layers []wire.Descriptor) (map[string]string, error) {
	out := map[string]string{}
	for _, l := range layers {
		name, err := s.waitIndex(ctx, repo, l.Digest)
		if err != nil {
			return nil, err
		}
		out[l.Digest] = name
	}
	return out, nil
}

// read reads a whole answer.
func (s *server) read(ctx context.Context, url string) ([]byte, error) {
	resp, err := s.do(ctx, http.StatusOK, http.MethodGet, url, nil, nil, 0)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}
