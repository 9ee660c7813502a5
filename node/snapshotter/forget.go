package snapshotter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// unpackedLabel is the prefix of the label by which containerd marks an image's configuration once
// the image is in a snapshotter, whose name follows.
const unpackedLabel = "containerd.io/gc.ref.snapshot."

// maxManifest bounds what is read of a manifest.
const maxManifest = 8 << 20

// Forget removes from a containerd the images that are useless without a snapshotter.
// These are images that are in no other snapshotter and whose layers containerd does not
// have, because the snapshotter fetched their files itself. Containerd would report such
// an image as present and fail to start containers of it. Containers that run keep their
// snapshots. Forget returns the names of the images.
func Forget(ctx context.Context, socket, snapshotter string) (names []string, err error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	spaces, err := namespacesapi.NewNamespacesClient(conn).List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containerd's namespaces: %w", err)
	}
	images := imagesapi.NewImagesClient(conn)
	f := forgetter{contentapi.NewContentClient(conn), unpackedLabel + snapshotter}
	for _, space := range spaces.Namespaces {
		ctx := namespaces.WithNamespace(ctx, space.Name)
		list, err := images.List(ctx, &imagesapi.ListImagesRequest{})
		if err != nil {
			return names, fmt.Errorf("list the images of namespace %s: %w", space.Name, err)
		}
		for _, im := range list.Images {
			useless, err := f.useless(ctx, im.Target.Digest)
			if err != nil {
				return names, fmt.Errorf("look at image %s: %w", im.Name, err)
			}
			if !useless {
				continue
			}
			if _, err := images.Delete(ctx, &imagesapi.DeleteImageRequest{Name: im.Name}); err != nil && !absent(err) {
				return names, fmt.Errorf("remove image %s: %w", im.Name, err)
			}
			names = append(names, im.Name)
		}
	}
	return names, nil
}

func absent(err error) bool { return status.Code(err) == codes.NotFound }

// forgetter looks at images.
type forgetter struct {
	content contentapi.ContentClient
	label   string // of images in the snapshotter
}

// useless reports whether the image of a manifest, or an image to which an index leads,
// lacks layers and is only in the snapshotter. The manifests of other platforms are
// usually absent.
func (f *forgetter) useless(ctx context.Context, digest string) (bool, error) {
	var doc struct {
		Config            struct{ Digest string }
		Layers, Manifests []struct{ Digest string }
	}
	b, err := f.read(ctx, digest)
	if absent(err) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return false, err
	}
	for _, m := range doc.Manifests {
		if useless, err := f.useless(ctx, m.Digest); useless || err != nil {
			return useless, err
		}
	}
	if only, err := f.only(ctx, doc.Config.Digest); !only || err != nil {
		return false, err
	}
	for _, l := range doc.Layers {
		_, err := f.content.Info(ctx, &contentapi.InfoRequest{Digest: l.Digest})
		if absent(err) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// only reports whether the snapshotter, and no other, has the image of a configuration.
func (f *forgetter) only(ctx context.Context, config string) (bool, error) {
	if config == "" {
		return false, nil
	}
	r, err := f.content.Info(ctx, &contentapi.InfoRequest{Digest: config})
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for label := range r.Info.Labels {
		if strings.HasPrefix(label, unpackedLabel) && label != f.label {
			return false, nil
		}
	}
	return r.Info.Labels[f.label] != "", nil
}

func (f *forgetter) read(ctx context.Context, digest string) (b []byte, err error) {
	stream, err := f.content.Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	if err != nil {
		return nil, err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		if b = append(b, part.Data...); len(b) > maxManifest {
			return nil, fmt.Errorf("manifest %s is larger than %d bytes", digest, maxManifest)
		}
	}
}
