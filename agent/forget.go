package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"example.org/slipway/node/snapshotter"
)

// forgetTimeout bounds how long containerd may take to forget images.
const forgetTimeout = time.Minute

// Forget makes the containerd behind a socket, if there is one, forget the images that can be used
// only with the agent, which it knows by a name. It returns the names of the images.
func Forget(ctx context.Context, socket, agent string) ([]string, error) {
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	return snapshotter.Forget(ctx, socket, agent)
}
