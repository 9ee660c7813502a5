package ceph

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Traffic holds counters of the OSD. They begin at 0 when it starts.
type Traffic struct {
	// ReadOps counts read requests of clients. ReadBytes counts the bytes of the answers.
	// WrittenBytes counts the bytes that clients wrote.
	ReadOps, ReadBytes, WrittenBytes int64
	// StoredBytes is how much data the OSD holds in all pools, without its store's own overhead.
	StoredBytes int64
}

// Traffic reads the OSD's counters.
func (c *Cluster) Traffic() (t Traffic, err error) {
	var dump struct {
		OSD struct {
			ReadOps      int64 `json:"op_r"`
			ReadBytes    int64 `json:"op_r_out_bytes"`
			WrittenBytes int64 `json:"op_w_in_bytes"`
		} `json:"osd"`
		Store struct {
			Stored int64 `json:"bluestore_stored"`
		} `json:"bluestore"`
	}
	if err := c.daemon("osd.0", "perf dump", &dump); err != nil {
		return t, err
	}
	return Traffic{dump.OSD.ReadOps, dump.OSD.ReadBytes, dump.OSD.WrittenBytes, dump.Store.Stored}, nil
}

// daemon sends a command to a daemon over its admin socket. The command is JSON followed by a zero
// byte; the answer is preceded by its length.
func (c *Cluster) daemon(name, command string, into any) error {
	conn, err := net.DialTimeout("unix", c.socket(name), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "{\"prefix\":%q}\x00", command); err != nil {
		return err
	}
	var length uint32
	if err := binary.Read(conn, binary.BigEndian, &length); err != nil {
		return fmt.Errorf("%s of %s: %w", command, name, err)
	}
	b, err := io.ReadAll(io.LimitReader(conn, int64(length)))
	if err != nil {
		return fmt.Errorf("%s of %s: %w", command, name, err)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}

// DropCache makes the OSD drop its cache, so that reads come from its disk.
func (c *Cluster) DropCache() error {
	return c.daemon("osd.0", "cache drop", nil) // answers nothing
}

// Images returns the names of the images in a namespace of the pool, sorted.
func (c *Cluster) Images(ctx context.Context, namespace string) ([]string, error) {
	return c.names(ctx, "rbd", "ls", "--pool", c.Pool, "--namespace", namespace, "--format", "json")
}

// Trash returns the images in the trash, which wait to be deleted.
func (c *Cluster) Trash(ctx context.Context, namespace string) ([]string, error) {
	out, err := c.Run(ctx, "rbd", "trash", "ls", "--all", "--pool", c.Pool, "--namespace", namespace, "--format", "json")
	if err != nil {
		return nil, err
	}
	var list []struct{ ID, Name string }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names, nil
}

func (c *Cluster) names(ctx context.Context, program string, args ...string) (list []string, err error) {
	out, err := c.Run(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	slices.Sort(list)
	return list, nil
}

// Watchers returns "image address" for each client that has an image of a namespace open.
func (c *Cluster) Watchers(ctx context.Context, namespace string) ([]string, error) {
	images, err := c.Images(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, im := range images {
		text, err := c.Run(ctx, "rbd", "status", "--pool", c.Pool, "--namespace", namespace, "--image", im, "--format", "json")
		if err != nil && strings.Contains(err.Error(), "No such file") {
			continue // the image was removed meanwhile, or only its name is left
		}
		if err != nil {
			return nil, err
		}
		var status struct {
			Watchers []struct{ Address string }
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return nil, err
		}
		for _, w := range status.Watchers {
			out = append(out, im+" "+w.Address)
		}
	}
	return out, nil
}

// Users returns the users whose names begin with the prefix, such as "client.slipway-".
func (c *Cluster) Users(ctx context.Context, prefix string) ([]string, error) {
	out, err := c.seed.Ask(ctx, "auth", "ls", "-f", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Dump []struct{ Entity string } `json:"auth_dump"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var users []string
	for _, u := range list.Dump {
		if strings.HasPrefix(u.Entity, prefix) {
			users = append(users, u.Entity)
		}
	}
	slices.Sort(users)
	return users, nil
}

// RemoveUser removes a user. Clients that are connected as this user stay connected until their
// tickets expire.
func (c *Cluster) RemoveUser(ctx context.Context, name string) error {
	_, err := c.seed.Ask(ctx, "auth", "rm", name)
	return err
}

// NewUser makes a user with the capabilities, writes its keyring into the cluster's directory, and
// returns the keyring's path.
func (c *Cluster) NewUser(ctx context.Context, name string, caps ...string) (keyring string, err error) {
	text, err := c.seed.Ask(ctx, append([]string{"auth", "get-or-create", name}, caps...)...)
	if err != nil {
		return "", err
	}
	keyring = c.Dir + "/" + name + ".keyring"
	return keyring, writeFile(keyring, text+"\n")
}

// SetFull makes the cluster refuse writes of clients, as one with full disks does, or accept them
// again.
func (c *Cluster) SetFull(ctx context.Context, full bool) error {
	ratio := []string{"osd", "set-full-ratio", "0.95"}
	nearfull, backfill := []string{"osd", "set-nearfull-ratio", "0.85"}, []string{"osd", "set-backfillfull-ratio", "0.90"}
	list := [][]string{ratio, backfill, nearfull}
	if full { // the smallest ratio first, because each must be larger than the one before
		ratio[2], nearfull[2], backfill[2] = "0.000003", "0.000001", "0.000002"
		list = [][]string{nearfull, backfill, ratio}
	}
	for _, args := range list {
		if _, err := c.seed.Ask(ctx, args...); err != nil {
			return err
		}
	}
	return c.awaitFull(ctx, full)
}

// awaitFull waits until the OSD has noticed the change.
func (c *Cluster) awaitFull(ctx context.Context, full bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		out, err := c.seed.Ask(ctx, "osd", "dump", "-f", "json")
		if err == nil {
			var dump struct {
				OSDs []struct{ State []string } `json:"osds"`
			}
			if err := json.Unmarshal([]byte(out), &dump); err != nil {
				return err
			}
			if len(dump.OSDs) == 1 && slices.Contains(dump.OSDs[0].State, "full") == full {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the OSD does not notice that it is full (%t): %w", full, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }

// Purge removes all images of a namespace with their snapshots, and clones before their parents.
func (c *Cluster) Purge(ctx context.Context, namespace string) error {
	for {
		images, err := c.Images(ctx, namespace)
		if err != nil || len(images) == 0 {
			return err
		}
		removed := 0
		var last error
		for _, im := range images {
			spec := c.Pool + "/" + namespace + "/" + im
			// An error is expected: the snapshot may be unprotected already, or still have clones.
			_, _ = c.Run(ctx, "rbd", "snap", "unprotect", spec+"@slipway")
			if _, err := c.Run(ctx, "rbd", "--no-progress", "snap", "purge", spec); err != nil {
				last = err
				continue
			}
			if _, err := c.Run(ctx, "rbd", "--no-progress", "rm", spec); err != nil {
				last = err
				continue
			}
			removed++
		}
		if removed == 0 {
			return fmt.Errorf("purge %s: %w", namespace, last)
		}
	}
}
