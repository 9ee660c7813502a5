package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// Index returns the whole tree of an image. It waits for layers that are still being
// converted. Errors: ErrNoGear; *client.GearPendingError for a layer that is not
// converted in time or cannot be converted.
func (c *Client) Index(ctx context.Context, img *Image) (*gear.Index, error) {
	if _, err := c.offered(ctx); err != nil {
		return nil, err
	}
	if img.Gear {
		return c.embedded(ctx, img)
	}
	layers, err := c.Layers(ctx, img)
	if err != nil {
		return nil, err
	}
	x, err := gear.Flatten(layers...)
	if err != nil {
		return nil, fmt.Errorf("the layers of %s do not fit together: %w", img.Name(), err)
	}
	return x, nil
}

// embedded reads the index in a Gear image.
func (c *Client) embedded(ctx context.Context, img *Image) (*gear.Index, error) {
	r, err := c.reg.GetBlob(ctx, img.Repo, img.Layers[0].Digest)
	if err != nil {
		return nil, fmt.Errorf("get the layer of Gear image %s: %w", img.Name(), err)
	}
	defer r.Close()
	x, err := gear.ReadImageLayer(ctx, r, c.opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", img.Name(), err)
	}
	return x, nil
}

// Layers returns the indexes of an image's layers, the lowest first. It waits and fails
// as Index does. For a Gear image it returns the image's one index.
func (c *Client) Layers(ctx context.Context, img *Image) ([]*gear.Index, error) {
	if img.Gear {
		x, err := c.embedded(ctx, img)
		return []*gear.Index{x}, err
	}
	if _, err := c.offered(ctx); err != nil {
		return nil, err
	}
	if len(img.DiffIDs) != len(img.Layers) {
		return nil, fmt.Errorf("%s has %d layers, but its configuration lists %d", img.Name(), len(img.Layers), len(img.DiffIDs))
	}
	began := c.opts.Clock()
	known := map[oci.Digest]*gear.Index{}
	out := make([]*gear.Index, len(img.Layers))
	for i, l := range img.Layers {
		if out[i] = known[l.Digest]; out[i] != nil {
			continue // the same layer again, as instructions that change nothing make it
		}
		x, err := c.layer(ctx, img.Repo, l.Digest, img.DiffIDs[i], began)
		if err != nil {
			return nil, fmt.Errorf("layer %d of %s: %w", i+1, img.Name(), err)
		}
		out[i], known[l.Digest] = x, x
	}
	return out, nil
}

// layer reads the index of a layer. began is when the waiting began.
func (c *Client) layer(ctx context.Context, repo string, d, diffID oci.Digest, began time.Time) (*gear.Index, error) {
	r, l, err := c.awaitLayer(ctx, repo, d, began)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The client checks the bytes against their name. The digest of the tar shows that
	// the index is of this layer, if the registry reports that digest.
	if got := oci.Digest(fmt.Sprintf("sha256:%x", l.DiffID)); l.DiffID != ([32]byte{}) && got != diffID {
		return nil, fmt.Errorf("the registry gives the index of another layer, or the configuration of the image is wrong: %w",
			&gear.MismatchError{What: "diff ID", Want: diffID, Got: got})
	}
	x, err := gear.Decode(r, c.opts.Limits)
	if err != nil {
		return nil, fmt.Errorf("index of %s: %w", d, err)
	}
	return x, nil
}

// awaitLayer opens the index of a layer as soon as the index exists.
func (c *Client) awaitLayer(ctx context.Context, repo string, d oci.Digest, began time.Time) (oci.Content, client.GearLayer, error) {
	for {
		r, l, err := c.reg.GearLayer(ctx, repo, d)
		if err == nil {
			return r, l, nil
		}
		var pending *client.GearPendingError
		if !errors.As(err, &pending) {
			if oci.HasCode(err, oci.CodeBlobUnknown) {
				err = fmt.Errorf("the registry has no index of it: %w", err)
			}
			return nil, l, err
		}
		if pending.RetryAfter <= 0 {
			return nil, l, fmt.Errorf("%s is not converted: %w", d, err)
		}
		waited := c.opts.Clock().Sub(began)
		if waited >= c.opts.Wait {
			return nil, l, fmt.Errorf("%s is still being converted after %s; try again later, or wait longer: %w", d, waited.Round(time.Second), err)
		}
		if c.opts.Waiting != nil {
			c.mu.Lock()
			c.opts.Waiting(Waiting{d, waited})
			c.mu.Unlock()
		}
		if err := pause(ctx, min(pending.RetryAfter, c.opts.AskEvery)); err != nil {
			return nil, l, err
		}
	}
}

// pathOf returns the first path at which an index mentions a content.
func pathOf(x *gear.Index, name gear.Name) string {
	for i := range x.Entries {
		e := &x.Entries[i]
		if e.Type == rootfs.File && x.Files[e.File].Name == name {
			return e.Path
		}
	}
	return ""
}
