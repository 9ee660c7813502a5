package view

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
)

// Tier is a way to give containers their files before their image is on the node. Each
// tier works with older kernels than the tier before it.
type Tier int

// These are the tiers. Auto is not a tier but requests the best one.
const (
	Auto Tier = iota
	// Full: the kernel mounts image files itself and finds data with the default options
	// of overlayfs. It needs Linux 6.16.
	Full
	// Metacopy: like Full, but with metacopy=on. It needs Linux 6.12.
	Metacopy
	// Loop: like Metacopy, but the image is on a loop device. It needs Linux 6.5.
	Loop
	// FUSE: the tree itself comes from user space, and an overlay lies above it.
	FUSE
	// Plain: images are unpacked.
	Plain
)

var tierNames = [...]string{"auto", "full", "metacopy", "loop", "fuse", "plain"}

// String returns the name that ParseTier accepts.
func (t Tier) String() string {
	if t < 0 || int(t) >= len(tierNames) {
		return fmt.Sprintf("Tier(%d)", int(t))
	}
	return tierNames[t]
}

// ParseTier returns the tier with a name.
func ParseTier(name string) (Tier, error) {
	for i, n := range tierNames {
		if n == name {
			return Tier(i), nil
		}
	}
	return Auto, fmt.Errorf("unknown tier %q; there are %s", name, strings.Join(tierNames[:], ", "))
}

// Support is what Probe found to work.
type Support struct {
	Tier Tier
	// Loop and Metacopy are the options for mounting images and overlays.
	Loop, Metacopy bool
	// Reasons describes the result for each tier that was tried, in order.
	Reasons []string
}

// Image returns the options for mounting images.
func (s *Support) Image() *ImageOptions { return &ImageOptions{Loop: s.Loop} }

// Probe finds the best tier. It mounts a tiny image in the way containers use it, with an
// ordinary directory above it and two data directories, and reads, changes and compares
// files. dir is where the state of the agent will be, because the type of its file system
// matters. Probe leaves nothing behind. If force is not Auto, only that tier is tried,
// and it is an error if it does not work.
func Probe(ctx context.Context, dir string, force Tier) (*Support, error) {
	type try struct {
		tier           Tier
		loop, metacopy bool
	}
	s := &Support{}
	for _, t := range []try{
		{Full, false, false}, {Metacopy, false, true}, {Loop, true, false}, {Loop, true, true}, {FUSE, false, false}, {Plain, false, false},
	} {
		if force != Auto && t.tier != force {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var err error
		switch t.tier {
		case Plain:
		case FUSE:
			err = probeFUSE(dir)
		default:
			err = probeOverlay(ctx, dir, t.loop, t.metacopy)
		}
		s.Tier, s.Loop, s.Metacopy = t.tier, t.loop, t.metacopy
		name := t.tier.String()
		if t.tier == Loop && t.metacopy {
			name += " with metacopy=on"
		}
		if err == nil {
			s.Reasons = append(s.Reasons, name+": works")
			return s, nil
		}
		s.Reasons = append(s.Reasons, name+": "+err.Error())
	}
	return nil, fmt.Errorf("tier %s does not work: %s", force, strings.Join(s.Reasons, "; "))
}

// probeFUSE returns an error if there is no FUSE. It does not serve any request, because
// a mount needs no answer.
func probeFUSE(dir string) (err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	defer unix.Close(fd)
	at, err := os.MkdirTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("probe", at, "fuse", unix.MS_RDONLY|unix.MS_NODEV|unix.MS_NOSUID, data); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// probeOverlay mounts an image and an overlay in a temporary directory.
func probeOverlay(ctx context.Context, dir string, loop, metacopy bool) (err error) {
	at, err := os.MkdirTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() {
		// RemoveAll must wait until it is certain that nothing is mounted there.
		if e := UnmountBelow(at); e != nil {
			err = errors.Join(err, e)
			return
		}
		err = errors.Join(err, os.RemoveAll(at))
	}()
	p := &probe{dir: at}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	if err := MountImage(p.image, p.in("erofs"), &ImageOptions{Loop: loop}); err != nil {
		return err
	}
	if m, ok, err := Mounted(p.in("erofs")); err != nil || !ok || !loop && m.Source != p.image {
		return errors.Join(err, errors.New("the kernel does not mount image files without a loop device"))
	}
	err = Overlay(p.in("merged"), OverlayOptions{
		Lower: []string{p.in("above"), p.in("erofs")}, Data: []string{p.in("cache"), p.in("pool")},
		Upper: p.in("upper"), Work: p.in("work"), Metacopy: metacopy,
	})
	if err != nil {
		return err
	}
	return p.use()
}

// probe is a tree for mounting.
type probe struct {
	dir, image string
}

// probeContents are the contents of the probe. Each is in the directory with the same
// name.
var probeContents = []string{"cache", "pool"}

func (p *probe) in(name string) string { return filepath.Join(p.dir, name) }

// prepare creates the directories, the image and the contents.
func (p *probe) prepare(ctx context.Context) error {
	for _, name := range []string{"erofs", "merged", "above", "cache", "pool", "upper", "work"} {
		if err := os.Mkdir(p.in(name), 0o700); err != nil {
			return err
		}
	}
	x := &gear.Index{}
	for i, text := range probeContents {
		f := gear.File{Name: sha256.Sum256([]byte(text)), Size: int64(len(text))}
		x.Files = append(x.Files, f)
		x.Entries = append(x.Entries, gear.Entry{File: int32(i), Entry: rootfs.Entry{Path: text, Type: rootfs.File, Mode: 0o644, Size: f.Size}})
		object := filepath.Join(p.in(text), ObjectPath(f.Name))
		if err := os.Mkdir(filepath.Dir(object), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(object, []byte(text), 0o400); err != nil {
			return err
		}
	}
	var err error
	p.image, err = Compile(ctx, x, p.dir)
	return err
}

// use reads the files through the overlay, appends to them and reads them again.
func (p *probe) use() error {
	for _, text := range probeContents {
		file := filepath.Join(p.in("merged"), text)
		got, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("a file of the image cannot be read: %w", err)
		}
		if string(got) != text {
			return fmt.Errorf("a file of the image has content %.40q instead of %q", got, text)
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return fmt.Errorf("a file of the image cannot be changed: %w", err)
		}
		_, err = f.WriteString("+")
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("a file of the image cannot be changed: %w", err)
		}
		got, err = os.ReadFile(file)
		if err != nil || !bytes.Equal(got, []byte(text+"+")) {
			return errors.Join(err, fmt.Errorf("a changed file of the image has content %.40q", got))
		}
	}
	return nil
}
