package snapshotter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	pkgfilters "github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/node/snapshotter"
)

// TestSuite runs containerd's test suite for snapshotters on layers that are all unpacked. It tells
// the suite that this is overlayfs, which in the suite's view cannot rename directories of lower
// layers. Nothing else depends on the name.
func TestSuite(t *testing.T) {
	tool.NeedRoot(t)
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		s, err := snapshotter.New(root, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	})
}

// TestSuiteOverClaimedLayer runs the suite with everything on top of an empty claimed layer.
func TestSuiteOverClaimedLayer(t *testing.T) {
	tool.NeedRoot(t)
	testsuite.SnapshotterSuite(t, "overlayfs", func(ctx context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		l := &registryLower{dir: filepath.Join(root, "lower"), running: map[string]string{}}
		base := digest.FromString("nothing").String()
		if err := errors.Join(os.MkdirAll(filepath.Join(l.chain(base), "tree"), 0o755), os.Mkdir(filepath.Join(l.chain(base), "mnt"), 0o755)); err != nil {
			return nil, nil, err
		}
		s, err := snapshotter.New(filepath.Join(root, "snapshots"), l, nil)
		if err != nil {
			return nil, nil, err
		}
		labels := map[string]string{snapshots.LabelSnapshotRef: base, snapshots.LabelSnapshotDiffID: base}
		if _, err := s.Prepare(ctx, "extract", "", snapshots.WithLabels(labels)); !errdefs.IsAlreadyExists(err) {
			return nil, nil, errors.Join(errors.New("the base was not claimed"), err, s.Close())
		}
		h := &onBase{Snapshotter: s, base: base}
		return h, func() error { return h.end(context.Background()) }, nil
	})
}

// onBase puts snapshots without a parent on a base, and hides the base.
type onBase struct {
	*snapshotter.Snapshotter
	base string
}

func (h *onBase) over(parent string) string {
	if parent == "" {
		return h.base
	}
	return parent
}

func (h *onBase) hide(i snapshots.Info) snapshots.Info {
	if i.Parent == h.base {
		i.Parent = ""
	}
	return i
}

func (h *onBase) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return h.Snapshotter.Prepare(ctx, key, h.over(parent), opts...)
}

func (h *onBase) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return h.Snapshotter.View(ctx, key, h.over(parent), opts...)
}

func (h *onBase) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	i, err := h.Snapshotter.Stat(ctx, key)
	return h.hide(i), err
}

func (h *onBase) Update(ctx context.Context, info snapshots.Info, fields ...string) (snapshots.Info, error) {
	i, err := h.Snapshotter.Update(ctx, info, fields...)
	return h.hide(i), err
}

func (h *onBase) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	filter, err := pkgfilters.ParseAll(filters...)
	if err != nil {
		return err
	}
	return h.Snapshotter.Walk(ctx, func(ctx context.Context, i snapshots.Info) error {
		if i = h.hide(i); i.Name == h.base || !filter.Match(fields(i)) {
			return nil
		}
		return fn(ctx, i)
	})
}

// fields shows a record to filters after the base has been hidden.
func fields(i snapshots.Info) pkgfilters.Adaptor {
	return pkgfilters.AdapterFunc(func(path []string) (string, bool) {
		switch path[0] {
		case "kind":
			return strings.ToLower(i.Kind.String()), true
		case "name":
			return i.Name, true
		case "parent":
			return i.Parent, true
		case "labels":
			v, ok := i.Labels[strings.Join(path[1:], ".")]
			return v, ok
		}
		return "", false
	})
}

// end removes everything, children first, because nothing else removes the mounts.
func (h *onBase) end(ctx context.Context) error {
	for {
		var names []string
		if err := h.Snapshotter.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			names = append(names, i.Name)
			return nil
		}); err != nil {
			// The suite closes some of them itself.
			return h.Close()
		}
		removed := 0
		var errs []error
		for _, name := range names {
			if err := h.Remove(ctx, name); err == nil {
				removed++
			} else {
				errs = append(errs, err)
			}
		}
		if len(names) == removed || removed == 0 {
			return errors.Join(errors.Join(errs...), h.Cleanup(ctx), h.Close())
		}
	}
}
