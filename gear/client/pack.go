package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// errLargeInPack says that an older registry sends large files in a pack.
var errLargeInPack = errors.New("a pack has a large file, of which only parts may be wanted")

// Pack requests the files that a container of an image opens first in one stream, and
// delivers them as they come, in that order. The registry knows these files, so they can be
// requested before the image's index is there. Large files and what the registry cannot
// send are not delivered. Errors: MANIFEST_UNKNOWN if the registry knows no such files.
func (c *Client) Pack(ctx context.Context, repo string, manifest oci.Digest, deliver func(f gear.File, content io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := client.GearPack(ctx, c.reg, repo, manifest)
	if err != nil {
		return fmt.Errorf("request the files of the profile of %s: %w", manifest, err)
	}
	defer body.Close()
	in := gear.NewStreamReader(gear.Arriving(ctx, body))
	for {
		it, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("files of the profile of %s: %w", manifest, err)
		case it.Missing || it.Failure != "":
			continue
		case it.Size >= gear.LargeFile:
			return errLargeInPack
		}
		if err := deliver(gear.File{Name: it.Name, Size: it.Size}, bytes.NewReader(it.Bytes())); err != nil {
			return err
		}
	}
}
