//go:build ceph

package rbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"golang.org/x/sync/errgroup"

	"example.org/slipway/volume/block"
)

// errWatched: clients without a lease have an image open for writing, for example because
// the kernel mapped it; or they are gone and the cluster does not know yet.
var errWatched = fmt.Errorf("%w: it is mapped", block.ErrInUse)

// unwatched returns errWatched if others watch an image.
func (s *Store) unwatched(img *rbd.Image) error {
	watchers, err := img.ListWatchers()
	if err != nil {
		return translate(err)
	}
	var others []string
	for _, w := range watchers {
		if uint64(w.Id) != s.conn.GetInstanceID() {
			others = append(others, fmt.Sprintf("client.%d at %s", w.Id, w.Addr))
		}
	}
	if len(others) > 0 {
		return fmt.Errorf("%w by %s", errWatched, strings.Join(others, ", "))
	}
	return nil
}

const (
	// neighbours is how many other objects are requested from an OSD to make it forget an
	// object. It is twice the number of objects that an OSD keeps for a placement group,
	// osd_pg_object_context_cache_count.
	neighbours = 128
	askers     = 8 // at a time
)

// reload makes the OSD load the header of an image again, unless a live client watches
// it.
//
// An OSD has the watchers of an object twice. It stores a list of them with the object;
// the OSD reports this list, and an image whose list is not empty cannot be removed. It
// also has them in memory, where a silent client times out. If a client dies while its
// watch is being stored, the watch is only in the stored list, and stays for ever
// (https://tracker.ceph.com/issues/58120). When the OSD loads the object, it makes
// watchers in memory from the stored list, and these time out after
// osd_client_watch_timeout. To make it load the object, reload requests other objects of
// the same placement group, which do not exist, until the OSD drops the header from its
// cache.
func (s *Store) reload(at *rados.IOContext, id string) error {
	header, err := headerOf(at, id)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return translate(err)
	}
	namespace, err := at.GetNamespace()
	if err != nil {
		return translate(err)
	}
	beside, err := s.openPool(namespace)
	if err != nil {
		return err
	}
	defer beside.Destroy()
	beside.SetLocator(header)
	var group errgroup.Group
	group.SetLimit(askers)
	for i := range neighbours {
		group.Go(func() error {
			// A read would not do, because the OSD keeps nothing about missing objects. It does
			// keep something for a change without effect, which is what reload requests.
			err := beside.Delete(fmt.Sprintf("slipway_none.%d", i))
			if isMissing(err) {
				return nil
			}
			return translate(err)
		})
	}
	return group.Wait()
}

// headerOf returns the object that clients of an image watch.
func headerOf(at *rados.IOContext, name string) (string, error) {
	b := make([]byte, 1<<10)
	n, err := at.Read("rbd_id."+name, b, 0)
	if isMissing(err) {
		return trashedHeader(at, name)
	}
	if err != nil {
		return "", err
	}
	id, ok := text(b[:n])
	if !ok {
		return "", errors.New("the image's id is not understood")
	}
	return headerPrefix + id, nil
}

const (
	headerPrefix = "rbd_header."
	mostTrashed  = 10_000 // looked at
)

// trashedHeader is like headerOf, for an image whose removal was broken off. The object
// rbd_trash has an entry for each: 6 bytes of version and length, 1 of who put it there,
// and its name.
func trashedHeader(at *rados.IOContext, name string) (string, error) {
	entries, err := at.GetOmapValues("rbd_trash", "", "id_", mostTrashed)
	if err != nil {
		return "", err
	}
	for key, entry := range entries {
		if len(entry) < 7 {
			continue
		}
		if was, ok := text(entry[7:]); ok && was == name {
			return headerPrefix + strings.TrimPrefix(key, "id_"), nil
		}
	}
	return "", rados.ErrNotFound
}

// text decodes a string in Ceph's encoding: its length in 4 bytes, and its bytes.
func text(b []byte) (string, bool) {
	if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
		return "", false
	}
	return string(b[4 : 4+binary.LittleEndian.Uint32(b)]), true
}
