package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
)

// These are ways to map RBD images in the kernel, as the program rbd calls them.
const (
	krbd = "krbd"
	nbd  = "nbd"
)

// snapshot is the snapshot at which a committed volume of RBD is read. volume/rbd creates
// it.
const snapshot = "slipway"

// chooseMapping puts mapping by the kernel in front of a Storage if the options ask for
// it and it is available, and says why or why not.
func chooseMapping(ctx context.Context, o *Options) (Storage, []string, error) {
	d := &devices{Storage: o.Storage, program: o.Program, outage: o.Outage, dir: filepath.Join(o.Dir, "devices"), log: o.Log}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := d.removeKeys(); err != nil {
		return nil, nil, err
	}
	var reasons []string
	for _, kind := range []string{krbd, nbd} {
		if o.Mapping != kind && o.Mapping != "auto" && o.Mapping != "" {
			continue
		}
		err := o.probe(ctx, kind, o.Program)
		if err == nil {
			d.kind, d.only = kind, o.Mapping == kind
			return d, append(reasons, kind+": works"), nil
		}
		if o.Mapping == kind {
			return nil, nil, fmt.Errorf("mapping %s: %w; use auto, or fuse", kind, err)
		}
		reasons = append(reasons, kind+": "+err.Error())
	}
	switch o.Mapping {
	case "", "auto", "fuse":
		return d, append(reasons, "fuse: works"), nil
	}
	return nil, nil, fmt.Errorf("mapping %q is not known; there are auto, krbd, nbd and fuse", o.Mapping)
}

// probeDevices returns an error if the kernel cannot map RBD images in a way. It loads
// the module if necessary.
func probeDevices(ctx context.Context, kind, program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return err
	}
	module, sign := "rbd", "/sys/bus/rbd"
	if kind == nbd {
		module, sign = "nbd", "/sys/block/nbd0"
		if _, err := exec.LookPath("rbd-nbd"); err != nil {
			return err
		}
	}
	if _, err := os.Stat(sign); err == nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "modprobe", module).CombinedOutput(); err != nil {
		return fmt.Errorf("module %[1]s is not loaded, and the agent, which as a service may not, could not load it: modprobe %[1]s does for now, a line %[1]s in /etc/modules-load.d/slipway.conf at every boot (%[2]w %.200[3]s)", module, err, bytes.TrimSpace(out))
	}
	_, err := os.Stat(sign)
	return err
}

// devices maps RBD images by the program rbd, and everything else by the Storage below.
// It records each mapping before it makes it, so that the mapping of a killed process is
// found again.
//
// The credential of a device cannot be replaced. In auto mode the Storage below therefore
// handles credentials that expire, because its mappings take new ones.
//
// The kernel does not announce that it reads a snapshot. So the Storage also maps a
// volume that is read, and holds its lease.
type devices struct {
	Storage
	kind         string // if "", Storage maps everything, except what the kernel mapped before
	program, dir string
	outage       time.Duration
	log          *slog.Logger
	only         bool // never fall back to the Storage below

	mu sync.Mutex // one program at a time: it looks for what another may be making
}

// deviceRecord is an RBD image that is mapped as a device, or will be.
type deviceRecord struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Pool  string `json:"pool"`
	Space string `json:"namespace"`
	Image string `json:"image"`
	Snap  string `json:"snap"`
}

func (d *devices) Map(ctx context.Context, m block.Mapping) (string, error) {
	if d.kind == "" || m.Place.Driver != "rbd" || !d.only && !m.Credential.Expires.IsZero() {
		return d.Storage.Map(ctx, m)
	}
	if m.Name != filepath.Base(m.Name) {
		return "", fmt.Errorf("map volume %s: bad name %q", m.ID, m.Name)
	}
	below := ""
	if !m.Writable {
		var err error
		if below, err = d.Storage.Map(ctx, m); err != nil {
			return "", err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, err := d.mapDevice(ctx, &m)
	if err == nil {
		return dev, nil
	}
	if d.only || ctx.Err() != nil {
		if below != "" {
			err = errors.Join(err, d.Storage.Unmap(context.WithoutCancel(ctx), m.Name))
		}
		return "", err
	}
	d.log.Warn("the kernel does not map a volume, which goes through user space", "volume", m.ID, "error", err)
	if below != "" {
		return below, nil
	}
	return d.Storage.Map(ctx, m)
}

// mapDevice maps an image, unless it is mapped, and returns the device.
func (d *devices) mapDevice(ctx context.Context, m *block.Mapping) (string, error) {
	r := deviceRecord{Kind: d.kind, Name: m.Name, Pool: m.Place.Pool, Space: m.Place.Namespace, Image: m.ID, Snap: snapshot}
	if m.Writable {
		r.Snap = ""
	}
	if volref.IsClone(m.ID) && m.Credential.Clones != "" {
		r.Space = m.Credential.Clones
	}
	all, err := d.list(ctx, d.kind)
	if err != nil {
		return "", err
	}
	if dev := all[r.spec()]; dev != "" {
		return dev, d.write(&r)
	}
	if err := d.write(&r); err != nil {
		return "", err
	}
	dev, err := d.runMap(ctx, &r, &m.Credential)
	if err == nil {
		return dev, nil
	}
	err = fmt.Errorf("map %s: %w", r.spec(), err)
	if ctx.Err() == nil { // otherwise the mapping was interrupted, and there may be a device
		err = errors.Join(err, d.forget(m.Name))
	}
	return "", err
}

const keyPrefix = ".key-"

// removeKeys removes the keys of a process that was killed while it mapped.
func (d *devices) removeKeys() error {
	entries, err := os.ReadDir(d.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), keyPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(d.dir, e.Name())))
		}
	}
	return err
}

// spec returns the image in the form of the program rbd.
func (r *deviceRecord) spec() string {
	s := r.Pool + "/" + r.Image
	if r.Space != "" {
		s = r.Pool + "/" + r.Space + "/" + r.Image
	}
	if r.Snap != "" {
		s += "@" + r.Snap
	}
	return s
}

func (d *devices) runMap(ctx context.Context, r *deviceRecord, c *volref.Credential) (string, error) {
	options := "osd_request_timeout=" + strconv.Itoa(int(d.outage.Seconds()))
	if d.kind == nbd {
		options = "io-timeout=" + strconv.Itoa(int(d.outage.Seconds()))
	} else if _, err := os.Stat("/run/udev/control"); err != nil {
		options += ",noudev" // otherwise rbd waits for an announcement of the device
	}
	args := []string{"device", "map", "--device-type", d.kind, "--options", options}
	if r.Snap != "" {
		args = append(args, "--read-only")
	}
	if c.Monitors != "" {
		args = append(args, "--mon_host", c.Monitors)
	}
	if c.User != "" {
		// The key is in a file, because others may read the arguments of programs.
		key, err := os.CreateTemp(d.dir, keyPrefix+"*")
		if err != nil {
			return "", err
		}
		defer os.Remove(key.Name())
		_, err = key.WriteString(c.Key)
		if err := errors.Join(err, key.Close()); err != nil {
			return "", err
		}
		args = append(args, "--id", c.User, "--keyfile", key.Name())
	}
	out, err := d.run(ctx, append(args, r.spec())...)
	if err != nil {
		return "", err
	}
	dev := string(bytes.TrimSpace(out))
	if !isDevice(dev) {
		return "", fmt.Errorf("%s does not name a device but %.200q", d.program, dev)
	}
	return dev, nil
}

// run runs the program. If the storage refuses, the program says so only in words and by
// its exit status, which is the error number.
func (d *devices) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.program, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.WaitDelay = time.Second // rbd-nbd goes on in the background with our pipes
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.Bytes(), nil
	}
	words := strings.TrimSpace(said.String())
	err = fmt.Errorf("%s %s: %w (%s)", d.program, strings.Join(args[:2], " "), err, words[max(0, len(words)-500):])
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	for code, is := range map[unix.Errno]error{
		unix.ENOENT: block.ErrNotFound, unix.EPERM: block.ErrDenied, unix.EACCES: block.ErrDenied,
		unix.EBUSY: block.ErrInUse, unix.EROFS: block.ErrInUse, unix.ETIMEDOUT: block.ErrAway,
	} {
		if exit.ExitCode() == int(code) {
			return nil, fmt.Errorf("%w: %w", is, err)
		}
	}
	return nil, err
}

// list returns the devices of all mapped images, whoever mapped them.
func (d *devices) list(ctx context.Context, kind string) (map[string]string, error) {
	out, err := d.run(ctx, "device", "list", "--device-type", kind, "--format", "json")
	if err != nil {
		return nil, err
	}
	return parseDevices(out)
}

// parseDevices reads the program's list: the device of each image. krbd and nbd name the
// image differently. "-" or "" means no snapshot.
func parseDevices(out []byte) (map[string]string, error) {
	var all []struct {
		Pool      string `json:"pool"`
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		Image     string `json:"image"`
		Snap      string `json:"snap"`
		Device    string `json:"device"`
	}
	if len(bytes.TrimSpace(out)) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("list of mapped devices is not understood: %w", err)
	}
	devs := map[string]string{}
	for _, a := range all {
		r := deviceRecord{Pool: a.Pool, Space: a.Namespace, Image: a.Name, Snap: a.Snap}
		if r.Image == "" {
			r.Image = a.Image
		}
		if r.Snap == "-" {
			r.Snap = ""
		}
		devs[r.spec()] = a.Device
	}
	return devs, nil
}

func (d *devices) Unmap(ctx context.Context, name string) error {
	d.mu.Lock()
	err := d.unmapDevice(ctx, name)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	return d.Storage.Unmap(ctx, name)
}

func (d *devices) unmapDevice(ctx context.Context, name string) error {
	b, err := os.ReadFile(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var r deviceRecord
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return fmt.Errorf("record of device %s: %w", name, err)
	}
	all, err := d.list(ctx, r.Kind)
	if err != nil {
		return err
	}
	if dev := all[r.spec()]; dev != "" {
		if _, err := d.run(ctx, "device", "unmap", "--device-type", r.Kind, dev); err != nil {
			return err
		}
	}
	return d.forget(name)
}

func (d *devices) Mapped(ctx context.Context) ([]string, error) {
	names, err := d.Storage.Mapped(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (d *devices) path(name string) string { return filepath.Join(d.dir, name+recordSuffix) }

func (d *devices) write(r *deviceRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.WriteFile(d.path(r.Name), b)
}

func (d *devices) forget(name string) error {
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.SyncDir(d.dir)
}
