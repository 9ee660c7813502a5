package volref

import (
	"errors"
	"fmt"
	"slices"

	"example.org/slipway/oci"
)

// MaxDevice is the largest device of a volume in bytes: ext4 with blocks of 4 KiB holds
// 16 TiB without the feature 64bit.
const MaxDevice = 16 << 40

// Limits of a record's values. Images have at most some 130 layers.
const (
	maxLayers = 1000
	maxText   = 200 // bytes of a cluster's, pool's or namespace's name
)

// RecordVersion is the version of records that this code writes and reads.
const RecordVersion = 1

// Check returns an error if a record from elsewhere cannot be used. The record must be of
// a known version, have only known features, and be consistent. If it is too new for this
// code, the error is an *[UnsupportedError].
func (r *Record) Check() error {
	if r.Version != RecordVersion {
		return &UnsupportedError{fmt.Sprintf("its record is of version %d; known is %d", r.Version, RecordVersion)}
	}
	if len(r.Features) > 0 {
		return &UnsupportedError{fmt.Sprintf("its record needs the unknown feature %.40q", r.Features[0])}
	}
	if r.FS != Ext4 && r.FS != EROFS {
		return &UnsupportedError{fmt.Sprintf("its record is of the unknown file system %.40q", r.FS)}
	}
	err := r.Place.check()
	if err == nil && !oci.ValidDigest(r.Manifest) {
		err = fmt.Errorf("no manifest has the digest %.100q", r.Manifest)
	}
	if err == nil {
		err = r.checkLayers()
	}
	if err != nil {
		return fmt.Errorf("record of volumes: %w", err)
	}
	return nil
}

func (r *Record) checkLayers() error {
	if len(r.Layers) == 0 || len(r.Layers) > maxLayers {
		return fmt.Errorf("it has %d layers; 1 to %d are possible", len(r.Layers), maxLayers)
	}
	size := int64(0)
	for i := range r.Layers {
		l := &r.Layers[i]
		if err := l.check(r.FS == Ext4 || i == len(r.Layers)-1); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		if l.Volume != "" && l.Size < size {
			return fmt.Errorf("layer %d: its volume has %d bytes, less than the %d of the one below", i, l.Size, size)
		}
		size = l.Size
	}
	return nil
}

func (l *RecordLayer) check(volume bool) error {
	switch {
	case !oci.ValidDigest(l.Digest):
		return fmt.Errorf("no layer has the digest %.100q", l.Digest)
	case volume != (l.Volume != ""):
		return errors.New("it has no volume but should, or the reverse")
	case !volume && (l.Size != 0 || l.Used != 0):
		return errors.New("it has a size but no volume")
	case !volume:
		return nil
	case IsClone(l.Volume):
		return fmt.Errorf("volume %q is a container's", l.Volume)
	case l.Size <= 0 || l.Size > MaxDevice || l.Size%4096 != 0:
		return fmt.Errorf("its volume has %d bytes, which no volume has", l.Size)
	case l.Used < 0 || l.Used > 2*l.Size:
		return fmt.Errorf("its volume of %d bytes stores %d", l.Size, l.Used)
	}
	return CheckName(l.Volume)
}

func (p *Place) check() error {
	rbd := p.Driver == "rbd"
	switch {
	case !rbd && p.Driver != "file":
		return &UnsupportedError{fmt.Sprintf("it lies in storage of the unknown kind %.40q", p.Driver)}
	case p.Cluster == "" || rbd == (p.Pool == "") || !rbd && p.Namespace != "":
		return errors.New("its place lacks a name or has one too many")
	}
	for _, s := range []string{p.Cluster, p.Pool, p.Namespace} {
		if len(s) > maxText || slices.ContainsFunc([]byte(s), notInName) {
			return fmt.Errorf("its place has the name %.100q, which cannot be", s)
		}
	}
	return nil
}

// notInName reports whether a byte would have another meaning in the configuration of
// Ceph or in a path.
func notInName(c byte) bool {
	return c <= ' ' || c >= 0x7f || c == '/' || c == '@' || c == '"' || c == '\'' || c == '\\'
}
