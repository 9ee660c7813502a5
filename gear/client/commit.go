package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/convert"
	"example.org/slipway/gear/upper"
	"example.org/slipway/oci"
)

// CommitOptions are the options of [Client.Commit] and [Client.CommitLayer].
type CommitOptions struct {
	// Repo and Tag say where the image is pushed. Repo defaults to the repository of the
	// base image. Tag is required.
	Repo, Tag string
	// Upper says how to read the upper directory.
	Upper upper.Options
	// Author and Comment are recorded if they are not empty.
	Author, Comment string
	// Created is recorded as the time of creation; default now.
	Created time.Time
	// Progress, when set, is called with the number of files and bytes uploaded, or with
	// the number of bytes of the layer written.
	Progress func(files int, bytes int64)
}

func (o *CommitOptions) fill(base *Image, now time.Time) error {
	if o.Repo == "" {
		o.Repo = base.Repo
	}
	if o.Created.IsZero() {
		o.Created = now
	}
	o.Created = o.Created.UTC()
	if err := oci.CheckName(o.Repo); err != nil {
		return err
	}
	return oci.CheckTag(o.Tag)
}

// historyEntry is an element of a configuration's history.
type historyEntry struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Author    string    `json:"author,omitempty"`
	Comment   string    `json:"comment,omitempty"`
}

func (o *CommitOptions) history() historyEntry {
	return historyEntry{o.Created, "slipway commit", o.Author, o.Comment}
}

// stamp sets who made an image and when.
func (o *CommitOptions) stamp(config object) error {
	if o.Author != "" {
		if err := config.set("author", o.Author); err != nil {
			return err
		}
	}
	return config.set("created", o.Created)
}

// host returns the registry's address in the form that image references use.
func (c *Client) host() string {
	u, err := url.Parse(c.reg.URL())
	if err != nil {
		return c.reg.URL()
	}
	return u.Host
}

// Commit makes a Gear image of a base image and the changes in the upper directory of an
// overlay on it, and pushes it. It uploads only the contents that the repository lacks.
// Errors: those of upper.Tar and of Index.
func (c *Client) Commit(ctx context.Context, dir string, base *Image, o CommitOptions) (Pushed, error) {
	if err := o.fill(base, c.opts.Clock()); err != nil {
		return Pushed{}, err
	}
	below, err := c.Index(ctx, base)
	if err != nil {
		return Pushed{}, err
	}
	if o.Repo != base.Repo { // the first blob creates the repository
		if _, err := c.reg.MountBlob(ctx, o.Repo, base.Repo, base.ConfigDesc.Digest); err != nil {
			return Pushed{}, fmt.Errorf("begin repository %s: %w", o.Repo, err)
		}
	}
	up, err := c.newUploader(ctx, o.Repo, o.Progress)
	if err != nil {
		return Pushed{}, err
	}
	changes, err := convertUpper(ctx, dir, &o.Upper, up)
	if err != nil {
		return Pushed{}, err
	}
	x, err := gear.Flatten(below, changes)
	if err != nil {
		return Pushed{}, fmt.Errorf("put the changes on top of %s: %w", base.Name(), err)
	}
	if err := up.complete(ctx, x, c.Files(base, below)); err != nil {
		return Pushed{}, err
	}
	config, err := o.gearConfig(base)
	if err != nil {
		return Pushed{}, fmt.Errorf("configuration of %s: %w", base.Name(), err)
	}
	_, p, err := c.pushGear(ctx, o.Repo, o.Tag,
		gearImage{index: x, config: config, change: o.gearHistory, annotations: c.baseAnnotations(base), platform: base.Platform})
	return p, err
}

// convertUpper converts an upper directory while it reads it.
func convertUpper(ctx context.Context, dir string, o *upper.Options, sink convert.Sink) (*gear.Index, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pr, pw := io.Pipe()
	read := make(chan error, 1)
	go func() {
		err := upper.Tar(ctx, dir, pw, o)
		pw.CloseWithError(err)
		read <- err
	}()
	out, err := convert.Layer(ctx, pr, convert.Want{}, sink, nil)
	pr.CloseWithError(io.ErrClosedPipe)
	readErr := <-read
	switch {
	case readErr != nil && !errors.Is(readErr, io.ErrClosedPipe):
		return nil, readErr
	case err != nil:
		return nil, err
	}
	return out.Index, nil
}

// gearConfig returns the base's configuration for an image that has no original.
func (o *CommitOptions) gearConfig(base *Image) ([]byte, error) {
	return edit(base.Config, func(top object) error {
		if raw := top["config"]; len(raw) > 0 && string(raw) != "null" {
			run, err := edit(raw, func(run object) error {
				if raw := run["Labels"]; len(raw) > 0 && string(raw) != "null" {
					labels, err := edit(raw, func(labels object) error { delete(labels, gear.LabelOriginal); return nil })
					run["Labels"] = labels
					return err
				}
				return nil
			})
			if err != nil {
				return err
			}
			top["config"] = run
		}
		return o.stamp(top)
	})
}

// gearHistory records in the configuration of a Gear image how the image was made.
func (o *CommitOptions) gearHistory(config []byte) ([]byte, error) {
	return edit(config, func(top object) error { return top.set("history", []historyEntry{o.history()}) })
}

// layered returns the ordinary image on which a layer can be put: base, or the image that
// base was made of.
func (c *Client) layered(ctx context.Context, base *Image) (*Image, error) {
	if !base.Gear {
		return base, nil
	}
	if base.Original == "" {
		return nil, fmt.Errorf("%s is a Gear image that was made of no other image, so it has no layers to add one to; commit a Gear image instead", base.Name())
	}
	img, err := c.One(ctx, base.Repo, string(base.Original), &base.Platform)
	if err != nil {
		return nil, fmt.Errorf("find the original of Gear image %s, to add a layer to it: %w", base.Name(), err)
	}
	return img, nil
}

// CommitLayer makes an ordinary image of a base image and one more layer, and pushes it.
// The layer holds the changes in the upper directory of an overlay. If base is a Gear
// image, the layer goes on top of its original. CommitLayer does not need the registry to
// support Gear.
func (c *Client) CommitLayer(ctx context.Context, dir string, base *Image, o CommitOptions) (Pushed, error) {
	if err := o.fill(base, c.opts.Clock()); err != nil {
		return Pushed{}, err
	}
	base, err := c.layered(ctx, base)
	if err != nil {
		return Pushed{}, err
	}
	layer, diffID, err := c.pushUpper(ctx, dir, base, &o)
	if err != nil {
		return Pushed{}, err
	}
	if o.Repo != base.Repo {
		for _, d := range base.Layers {
			if _, err := c.reg.MountBlob(ctx, o.Repo, base.Repo, d.Digest); err != nil {
				return Pushed{}, fmt.Errorf("mount layer %s of %s: %w", d.Digest, base.Name(), err)
			}
		}
	}
	config, err := edit(base.Config, func(top object) error { return o.extend(top, diffID) })
	if err != nil {
		return Pushed{}, fmt.Errorf("configuration of %s: %w", base.Name(), err)
	}
	cd, err := c.putBlob(ctx, o.Repo, base.ConfigDesc.MediaType, config)
	if err != nil {
		return Pushed{}, err
	}
	m := object{}
	if err := json.Unmarshal(base.Manifest.Bytes, &m); err != nil {
		return Pushed{}, fmt.Errorf("manifest of %s: %w", base.Name(), err)
	}
	delete(m, "subject") // the base refers to something, this image does not
	err = errors.Join(m.set("config", cd), m.set("layers", append(base.Layers[:len(base.Layers):len(base.Layers)], layer)))
	if base.Manifest.MediaType == oci.MediaTypeOCIManifest {
		err = errors.Join(err, m.set("annotations", c.baseAnnotations(base)))
	}
	if err != nil {
		return Pushed{}, err
	}
	d, err := c.putManifest(ctx, o.Repo, o.Tag, base.Manifest.MediaType, m)
	return Pushed{Repo: o.Repo, Tag: o.Tag, Digest: d.Digest, Platform: base.Platform.String(), LayerBytes: layer.Size}, err
}

// extend adds a layer to a configuration.
func (o *CommitOptions) extend(top object, diffID oci.Digest) error {
	var fs struct {
		Type    string       `json:"type"`
		DiffIDs []oci.Digest `json:"diff_ids"`
	}
	if err := json.Unmarshal(top["rootfs"], &fs); err != nil {
		return err
	}
	var history []json.RawMessage
	if raw := top["history"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &history); err != nil {
			return err
		}
	}
	now, err := json.Marshal(o.history())
	if err != nil {
		return err
	}
	fs.DiffIDs = append(fs.DiffIDs, diffID)
	return errors.Join(top.set("rootfs", fs), top.set("history", append(history, now)), o.stamp(top))
}
