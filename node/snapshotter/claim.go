package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"example.org/slipway/internal/durable"
)

// These are the labels of a layer that is about to be unpacked, except for the labels
// that package snapshots names.
const (
	labelImageRef = "containerd.io/snapshot/cri.image-ref"
	labelManifest = "containerd.io/snapshot/cri.manifest-digest"
	labelDigest   = "containerd.io/snapshot/cri.layer-digest"
	labelLayers   = "containerd.io/snapshot/cri.image-layers"
)

// claimedUsage returns the usage that marks the record of a claimed snapshot. As a part
// of the usage, the mark is written in the transaction that creates the record, and
// nobody else can set or remove it. A label would not be safe, because labels come from
// manifests.
func claimedUsage() snapshots.Usage { return snapshots.Usage{Size: -1, Inodes: -1} }

func isClaimed(u snapshots.Usage) bool { return u == claimedUsage() }

// claim asks Lower to claim the layer for which a snapshot is prepared, and creates the
// record of a claimed layer. If it returns true with an error, the layer already exists.
func (s *Snapshotter) claim(ctx context.Context, key, parent string, labels map[string]string, opts []snapshots.Opt) (bool, error) {
	if parent != "" {
		_, _, usage, err := s.get(ctx, parent)
		if err != nil {
			return false, fmt.Errorf("parent %s of snapshot %s: %w", parent, key, err)
		}
		if !isClaimed(usage) {
			return false, nil
		}
	}
	l := layerOf(parent, labels)
	if err := checkChain(l); err != nil {
		s.log.Warn("layer is unpacked, its labels do not fit", "snapshot", key, "error", err)
		return false, nil
	}
	defer s.chains.lock(l.ChainID)()
	// Whatever happens from here on, Drop is called for a chain that ends up without a
	// record.
	if err := s.notePending(l.ChainID); err != nil {
		return false, fmt.Errorf("snapshot %s: %w", key, err)
	}
	ok, err := s.lower.Claim(ctx, l)
	if err != nil {
		if ctx.Err() != nil {
			return false, fmt.Errorf("snapshot %s: %w", key, context.Cause(ctx))
		}
		s.log.Warn("layer is unpacked, it could not be made available", "snapshot", key, "chain", l.ChainID, "error", err)
	}
	recorded := false
	if ok && err == nil {
		recorded, err = s.recordClaim(ctx, key, l, opts)
		if err != nil {
			return false, fmt.Errorf("record layer %s: %w", l.ChainID, err)
		}
	}
	s.settle(ctx, l.ChainID)
	return recorded, nil
}

// recordClaim commits a claimed layer under its chain ID, unless it exists. It returns
// false if the name belongs to something else.
func (s *Snapshotter) recordClaim(ctx context.Context, key string, l Layer, opts []snapshots.Opt) (ok bool, err error) {
	err = s.meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		_, info, usage, err := storage.GetInfo(ctx, l.ChainID)
		if err == nil {
			ok = isClaimed(usage) && info.Parent == l.Parent
			return nil
		}
		if !errdefs.IsNotFound(err) {
			return err
		}
		if _, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, l.Parent, opts...); err != nil {
			return err
		}
		_, err = storage.CommitActive(ctx, key, l.ChainID, claimedUsage(), opts...)
		ok = err == nil
		return err
	})
	return ok && err == nil, err
}

func layerOf(parent string, labels map[string]string) Layer {
	l := Layer{
		ChainID: labels[snapshots.LabelSnapshotRef], Parent: parent, DiffID: labels[snapshots.LabelSnapshotDiffID],
		Digest: labels[labelDigest], Manifest: labels[labelManifest], ImageRef: labels[labelImageRef],
		Labels: labels,
	}
	if list := labels[labelLayers]; list != "" {
		l.Layers = strings.Split(list, ",")
	}
	return l
}

// checkChain checks that a chain ID is valid and that it names this layer over this
// parent. Labels can fail this check: for a snapshotter that can change parents,
// containerd prepares all layers without a parent.
func checkChain(l Layer) error {
	chain, err := digest.Parse(l.ChainID)
	if err != nil {
		return fmt.Errorf("chain ID %q: %w", l.ChainID, err)
	}
	if l.DiffID == "" {
		return nil
	}
	want := digest.Digest(l.DiffID)
	if l.Parent != "" {
		want = chain.Algorithm().FromString(l.Parent + " " + l.DiffID)
	}
	if chain != want {
		return fmt.Errorf("chain ID %s does not belong to layer %s over %q", chain, l.DiffID, l.Parent)
	}
	return nil
}

// A chain is noted as pending before Lower hears of it and before its record is removed,
// and it is settled afterwards. The note is an empty file named after the chain, so
// nothing else can be damaged.

// note returns the path of a note. A snapshot that is committed from a container may have
// any name, including slashes.
func (s *Snapshotter) note(chain string) string {
	return filepath.Join(s.chainDir(), url.PathEscape(chain))
}

func (s *Snapshotter) notePending(chain string) error {
	f, err := os.OpenFile(s.note(chain), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), durable.SyncDir(s.chainDir()))
}

// settle calls Drop for a noted chain that has no record, and removes the note. The
// caller holds the chain's lock.
func (s *Snapshotter) settle(ctx context.Context, chain string) {
	_, _, usage, err := s.get(ctx, chain)
	if errdefs.IsNotFound(err) || err == nil && !isClaimed(usage) {
		err = s.needLower().Drop(ctx, chainName(chain))
	}
	if err == nil {
		err = os.Remove(s.note(chain))
	}
	if err != nil {
		s.log.Warn("chain is dropped later", "chain", chain, "error", err)
	}
}

// settleAll settles the chains that were left pending. It skips a chain that is in use,
// because its user settles it: a claim may wait for a registry, and containerd's garbage
// collection must not wait for that.
func (s *Snapshotter) settleAll(ctx context.Context) error {
	entries, err := os.ReadDir(s.chainDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		chain, err := url.PathUnescape(e.Name())
		if err != nil {
			chain = e.Name() // not one of our notes
		}
		unlock := s.chains.tryLock(chain)
		if unlock == nil {
			continue
		}
		// It may have been settled since the listing.
		if _, err := os.Lstat(s.note(chain)); err == nil {
			s.settle(ctx, chain)
		}
		unlock()
	}
	return nil
}

// needLower returns Lower. If there is none, because a directory with claimed layers was
// opened without one, it returns a Lower whose errors say what to do.
func (s *Snapshotter) needLower() Lower {
	if s.lower == nil {
		return noLower{}
	}
	return s.lower
}

type noLower struct{}

var errNoLower = errors.New("the layer is provided by the node's file service, which is off; turn it on, or remove the image and pull it again")

func (noLower) Claim(context.Context, Layer) (bool, error)          { return false, nil }
func (noLower) Mount(context.Context, string) (Layers, error)       { return Layers{}, errNoLower }
func (noLower) Started(context.Context, Container) error            { return errNoLower }
func (noLower) Stopped(context.Context, string) error               { return errNoLower }
func (noLower) Usage(context.Context, string) (int64, int64, error) { return 0, 0, errNoLower }
func (noLower) Drop(context.Context, string) error                  { return errNoLower }
