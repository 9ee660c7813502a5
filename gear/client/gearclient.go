// Package gearclient implements what a client does with Gear against a registry that
// offers it. It reads images as trees of files, writes them out, converts them to Gear
// images, commits the changes of a container, and reports what images contain and share.
//
// An image is read through its layers' indexes, which the registry makes. A Gear image is
// read through the index in it. Contents come in streams of many files. A stream that
// breaks is continued where it stopped. Nothing here mounts or runs anything.
package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// ErrNoGear is returned, wrapped, for a registry without the extension.
var ErrNoGear = errors.New("this registry does not offer Gear")

// Options are the options of New. The zero value works.
type Options struct {
	// Wait is how long a call waits in total for layers that the registry is still
	// converting; default 30 min.
	Wait time.Duration
	// AskEvery is the longest pause between two questions whether a layer is converted,
	// whatever pause the registry asks for; default 30 s.
	AskEvery time.Duration
	// Waiting, when set, is called before each pause. Calls do not overlap.
	Waiting func(Waiting)
	// Limits bound the indexes that are read.
	Limits *gear.Limits
	// RetryWait is the first pause before a broken stream is continued; default 500 ms.
	// Each further pause without progress is twice as long.
	RetryWait time.Duration
	// Clock returns the time; default time.Now.
	Clock func() time.Time
}

// Waiting describes a layer that a call waits for.
type Waiting struct {
	Layer oci.Digest
	// For is how long the call has waited already.
	For time.Duration
}

// streamTries is how often a stream is continued without receiving a file in between.
const streamTries = 4

// Client uses one registry. It is safe for concurrent use.
type Client struct {
	reg  *client.Client
	opts Options

	mu    sync.Mutex // guards offer, and the calls of Options.Waiting
	offer *client.GearInfo
}

// New returns a client of a registry, which the caller closes.
func New(reg *client.Client, o *Options) *Client {
	c := &Client{reg: reg}
	if o != nil {
		c.opts = *o
	}
	v := &c.opts
	if v.Wait <= 0 {
		v.Wait = 30 * time.Minute
	}
	if v.AskEvery <= 0 {
		v.AskEvery = 30 * time.Second
	}
	if v.RetryWait <= 0 {
		v.RetryWait = 500 * time.Millisecond
	}
	if v.Clock == nil {
		v.Clock = time.Now
	}
	return c
}

// Check asks whether the registry offers Gear, unless that is known. Later calls that
// need the answer do not wait for it. Errors: ErrNoGear.
func (c *Client) Check(ctx context.Context) error {
	_, err := c.offered(ctx)
	return err
}

// offered returns what the registry offers. It asks the registry once. Errors: ErrNoGear.
func (c *Client) offered(ctx context.Context) (*client.GearInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offer != nil {
		return c.offer, nil
	}
	info, err := c.reg.GearInfo(ctx)
	if oci.HasCode(err, oci.CodeUnsupported) {
		return nil, fmt.Errorf("%w: %s has no extension _slipway/gear; copy the image to a registry that slipway serve runs (slipway import)", ErrNoGear, c.reg.URL())
	}
	if err != nil {
		return nil, fmt.Errorf("ask what the registry offers of Gear: %w", err)
	}
	if info.Version != 1 || info.Limits.Names < 1 {
		return nil, fmt.Errorf("%w in version 1: %s speaks version %d; use a program as new as the registry", ErrNoGear, c.reg.URL(), info.Version)
	}
	c.offer = info
	return info, nil
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
