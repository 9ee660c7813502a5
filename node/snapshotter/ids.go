package snapshotter

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// ids is the owner of a file.
type ids struct{ uid, gid int }

func ownerOf(dir string) (*ids, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("stat %s: no owner", dir)
	}
	return &ids{int(st.Uid), int(st.Gid)}, nil
}

// mappedRoot returns the ids on this machine of the container's root if containerd
// requests mapped user ids, and otherwise nil.
func mappedRoot(labels map[string]string) (*ids, error) {
	uids, isUID := labels[snapshots.LabelSnapshotUIDMapping]
	gids, isGID := labels[snapshots.LabelSnapshotGIDMapping]
	if !isUID && !isGID {
		return nil, nil
	}
	uid, err := rootOf(uids)
	if err != nil {
		return nil, fmt.Errorf("label %s: %w", snapshots.LabelSnapshotUIDMapping, err)
	}
	gid, err := rootOf(gids)
	if err != nil {
		return nil, fmt.Errorf("label %s: %w", snapshots.LabelSnapshotGIDMapping, err)
	}
	return &ids{uid, gid}, nil
}

// rootOf returns the host id of id 0 in a mapping, which consists of CONTAINER:HOST:SIZE
// parts separated by commas. Without a mapping, ids are unchanged.
func rootOf(mapping string) (int, error) {
	if mapping == "" {
		return 0, nil
	}
	for part := range strings.SplitSeq(mapping, ",") {
		fields := strings.Split(part, ":")
		if len(fields) != 3 {
			return 0, fmt.Errorf("mapping %q is not CONTAINER:HOST:SIZE: %w", part, errdefs.ErrInvalidArgument)
		}
		var n [3]uint64
		for i, f := range fields {
			var err error
			// The kernel uses the highest id for "none".
			if n[i], err = strconv.ParseUint(f, 10, 32); err != nil || n[i] == math.MaxUint32 {
				return 0, fmt.Errorf("mapping %q: number %q: %w", part, f, errdefs.ErrInvalidArgument)
			}
		}
		if n[0] == 0 && n[2] > 0 {
			return int(n[1]), nil
		}
	}
	return 0, fmt.Errorf("mapping %q has no id 0: %w", mapping, errdefs.ErrInvalidArgument)
}
