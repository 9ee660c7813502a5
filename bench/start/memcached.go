package start

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/tasks"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// memcachedSeries is not a series of the corpus. Its image is made from the archive of a minimal
// Debian with memcached, which scripts/setup.sh leaves beside the tools.
const (
	memcachedSeries  = "memcached"
	memcachedAddress = "127.0.0.1:11211"
)

// memcachedTask returns a task that is done when the server has reported its version.
func memcachedTask() tasks.Task {
	return tasks.Task{Series: memcachedSeries, Name: "tells its version", Timeout: time.Minute,
		Probe: tasks.Line(memcachedAddress, "version\r\n"), Want: []string{"VERSION 1."}}
}

// memcachedImage writes the image to a layout. Without the archive it fails with os.ErrNotExist.
func memcachedImage(dir string) (*corpus.Image, error) {
	archive, err := os.Open(filepath.Join(filepath.Dir(tool.Dir()), "memcached.tar"))
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	diff := sha256.New()
	zip, err := gzip.NewWriterLevel(&raw, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.MultiWriter(zip, diff), archive); err != nil {
		return nil, errors.Join(err, zip.Close())
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			// There is one thread, because the load uses the other CPU.
			"Cmd": []string{"memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", "11211", "-t", "1", "-m", "256"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", diff.Sum(nil))}},
	})
	if err != nil {
		return nil, err
	}
	im, err := writeLayout(dir, wire.Document{
		SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json",
		Config: &wire.Descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: wire.Digest(config), Size: int64(len(config))},
		Layers: []wire.Descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: wire.Digest(raw.Bytes()), Size: int64(raw.Len())}},
	}, config, raw.Bytes())
	if err != nil {
		return nil, err
	}
	im.Series, im.Version = memcachedSeries, "1"
	return im, nil
}

// pushMemcached pushes the image. It returns nil if there is no archive to make it from.
func (b *bench) pushMemcached(ctx context.Context) (*corpus.Image, error) {
	im, err := memcachedImage(filepath.Join(b.Dir, memcachedSeries))
	if errors.Is(err, os.ErrNotExist) {
		b.Logf("no image of memcached: %v (scripts/setup.sh bench makes it)", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return im, b.registry.push(ctx, im)
}
