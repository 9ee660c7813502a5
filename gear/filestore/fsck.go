package filestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/filestore/packfile"
	"example.org/slipway/gear/filestore/parity"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/objstore"
)

// VerifyOptions are the options of Verify. The zero value compares the tables of the
// packs with the catalogue and changes nothing.
type VerifyOptions struct {
	// Contents reads all packs and decodes every content.
	Contents bool
	// Repair makes damaged packs again from their parity. If that is not possible, it
	// records damaged contents as lost. It also deletes objects that the catalogue does not
	// name.
	Repair bool
	// Found is called with every problem, and Progress, if not nil, after every pack.
	Found    func(Problem)
	Progress func(VerifyReport)
}

// Problem is something that Verify found.
type Problem struct {
	// Pack is the name of the pack in hex.
	Pack string
	// Name is the name of a content in hex. It is empty if the problem concerns the whole
	// pack.
	Name string `json:",omitempty"`
	// Orphan says that the object is not in the catalogue.
	Orphan bool `json:",omitempty"`
	// Needed says that the content is needed to rebuild a dropped layer, so that a repair
	// leaves the content where it was.
	Needed bool `json:",omitempty"`
	// Awaited says that the content's bytes are lost, that a dropped layer needs the
	// content, and that it is made again from another layer. Pack is empty.
	Awaited bool `json:",omitempty"`
	// Parity says that Pack is the name of a parity file.
	Parity bool `json:",omitempty"`
	// Restored says that the pack was made again from its parity, or that the parity is
	// made again soon.
	Restored bool `json:",omitempty"`
	What     string
}

// VerifyReport counts what Verify examined.
type VerifyReport struct {
	Packs, Files int
	// Bytes is the size of the objects.
	Bytes    int64
	Problems int
}

// Verify looks for damaged packs and for objects that nothing names.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (rep VerifyReport, err error) {
	found := func(p Problem) {
		rep.Problems++
		if o.Found != nil {
			o.Found(p)
		}
	}
	var after int64
	for {
		packs, err := s.facts.Packs(ctx, after, 256)
		if err != nil {
			return rep, fmt.Errorf("list packs: %w", err)
		}
		if len(packs) == 0 {
			break
		}
		for i := range packs {
			after = packs[i].ID
			rep.Packs++
			rep.Bytes += packs[i].Size
			n, err := s.verifyPack(ctx, &packs[i], o, found)
			rep.Files += n
			if err != nil {
				return rep, fmt.Errorf("verify pack %x: %w", packs[i].Digest, err)
			}
			if o.Progress != nil {
				o.Progress(rep)
			}
		}
	}
	if err := s.verifyLost(ctx, found); err != nil {
		return rep, fmt.Errorf("look for lost contents: %w", err)
	}
	if err := s.verifyParity(ctx, o, found); err != nil {
		return rep, fmt.Errorf("verify parity: %w", err)
	}
	return rep, s.verifyOrphans(ctx, o, found)
}

// maxLost is how many lost contents Verify reports.
const maxLost = 1000

// verifyLost reports contents of dropped layers that are lost, by this check or before.
// Until they are made again, the layers cannot be pulled.
func (s *Store) verifyLost(ctx context.Context, found func(Problem)) error {
	names, err := s.checks.Lost(ctx, maxLost)
	for _, n := range names {
		found(Problem{Name: hex.EncodeToString(n[:]), Awaited: true, What: "its bytes are lost, and it was not made again yet"})
	}
	return err
}

// verifyParity reads the parity files. It does so only if contents are verified, too. A
// group with a damaged file is made anew by whoever keeps the groups.
func (s *Store) verifyParity(ctx context.Context, o VerifyOptions, found func(Problem)) error {
	if !o.Contents {
		return nil
	}
	groups, err := gearfacts.NewParity(s.cat.DB).Groups(ctx, gear.Name{})
	if err != nil {
		return err
	}
	for i := range groups {
		damage, err := s.guard.Check(ctx, &groups[i], nil)
		if err != nil {
			return err
		}
		if damage != nil {
			found(Problem{Pack: hex.EncodeToString(groups[i].Files[0].Digest[:]), Parity: true, Restored: o.Repair, What: damage.Error()})
		}
	}
	return nil
}

// verifyPack compares one pack with the catalogue.
func (s *Store) verifyPack(ctx context.Context, p *gearfacts.Pack, o VerifyOptions, found func(Problem)) (int, error) {
	rows, err := s.facts.PackFiles(ctx, p.ID)
	if err != nil {
		return 0, err
	}
	pack := hex.EncodeToString(p.Digest[:])
	table, size, err := s.readTable(ctx, p.Digest)
	if err == nil && size != p.Size {
		err = fmt.Errorf("object of %d bytes, the catalogue says %d: %w", size, p.Size, packfile.ErrFormat)
	}
	if err == nil && o.Contents {
		err = s.guard.Verify(ctx, p.Digest)
	}
	if err != nil {
		if !parity.Lasts(err) && !packfile.IsDamage(err) {
			return 0, err
		}
		if gone, e := s.replaced(ctx, p); gone || e != nil {
			return 0, e
		}
		if len(rows) == 0 { // nothing needs the pack, and Settle drops it
			return 0, nil
		}
		if o.Repair && s.guard.Repair(ctx, p.Digest) == nil {
			s.forgetDicts(p.Digest)
			found(Problem{Pack: pack, What: err.Error(), Restored: true})
			return s.verifyPack(ctx, p, VerifyOptions{Contents: o.Contents}, found)
		}
		if err := s.checks.Found(ctx, p.Digest, err.Error()); err != nil {
			return 0, err
		}
		found(Problem{Pack: pack, What: err.Error()})
		if !maybeLost(err) || parity.IsUnreadable(err) { // its contents may be read again later
			return 0, nil
		}
	}
	at := make(map[gear.Name]gearfacts.File, len(table))
	for _, f := range table {
		at[f.Name] = f
	}
	sound := err == nil
	for i := range rows {
		f := &rows[i]
		bad := s.verifyFile(ctx, f, at, err != nil, o.Contents || err != nil)
		if bad == nil {
			continue
		}
		sound = false
		if !packfile.IsDamage(bad) && !errors.Is(bad, objstore.ErrNotExist) {
			return i, bad
		}
		if gone, e := s.replaced(ctx, p); gone || e != nil {
			return i, e
		}
		problem := Problem{Pack: pack, Name: hex.EncodeToString(f.Name[:]), What: bad.Error()}
		var corrupt *CorruptError
		if o.Repair {
			err := s.damaged(ctx, f.Name, p.Digest, bad)
			if !errors.As(err, &corrupt) {
				return i, err
			}
			problem.Needed = errors.Is(err, gearfacts.ErrNeeded)
		}
		found(problem)
	}
	if err != nil && o.Repair {
		return len(rows), s.rescue(ctx, p)
	}
	if sound && o.Contents { // an earlier check may have found damage
		return len(rows), s.checks.Checked(ctx, p.Digest, "")
	}
	return len(rows), nil
}

// rescue moves the sound contents of a damaged pack into a new one. It leaves a pack
// alone if a conversion relies on it. It does nothing while another process does the
// housekeeping.
func (s *Store) rescue(ctx context.Context, p *gearfacts.Pack) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	ctx, release, err := s.housekeeping(ctx)
	if errors.Is(err, engine.ErrLeased) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, err = s.settleGroup(ctx, []gearfacts.Pack{*p})
	var busy busyError
	if errors.As(err, &busy) || errors.Is(err, gearfacts.ErrStale) || errors.Is(err, gearfacts.ErrNeeded) {
		return nil
	}
	return err
}

// replaced reports whether a pack was replaced meanwhile.
func (s *Store) replaced(ctx context.Context, p *gearfacts.Pack) (bool, error) {
	now, err := s.facts.Packs(ctx, p.ID-1, 1)
	return err == nil && (len(now) == 0 || now[0].ID != p.ID), err
}

// verifyFile checks a content by the pack's table, unless the table is damaged, and by
// the content's bytes.
func (s *Store) verifyFile(ctx context.Context, f *gearfacts.File, table map[gear.Name]gearfacts.File, noTable, contents bool) error {
	if t, ok := table[f.Name]; !noTable && (!ok || placeOf(&t) != (place{f.Size, f.Off, f.Stored, gear.Name{}, gear.Encoding(f.Encoding)})) {
		return fmt.Errorf("the pack's table does not say so: %w", packfile.ErrFormat)
	}
	if !contents {
		return nil
	}
	p := placeOf(f)
	if p.encoding != gear.Chunked {
		stored, err := s.readPack(ctx, p.pack, p.off, p.stored)
		if err == nil {
			_, err = s.decode(ctx, f.Name, p, stored, nil)
		}
		return err
	}
	file := &File{s: s, name: f.Name, at: p}
	whole := sha256.New()
	err := file.eachChunk(ctx, 0, p.size, func(_ int, chunk []byte) error {
		_, err := whole.Write(chunk)
		return err
	})
	if err == nil && gear.Name(whole.Sum(nil)) != f.Name {
		err = gear.ErrContent
	}
	return err
}

// readTable reads the table of a pack.
func (s *Store) readTable(ctx context.Context, digest gear.Name) (files []gearfacts.File, size int64, err error) {
	info, err := s.objs.Stat(ctx, packKey(digest))
	if err != nil {
		return nil, 0, err
	}
	size = info.Size
	if size < packfile.HeaderSize+packfile.TrailerSize {
		return nil, size, fmt.Errorf("%d bytes: %w", size, packfile.ErrFormat)
	}
	b, err := s.readPack(ctx, digest, size-packfile.TrailerSize, packfile.TrailerSize)
	if err != nil {
		return nil, size, err
	}
	shape, err := packfile.ParseTrailer(b, size)
	if err != nil {
		return nil, size, err
	}
	header, err := s.readPack(ctx, digest, 0, packfile.HeaderSize+int64(shape.Dict))
	if err != nil {
		return nil, size, err
	}
	table, err := s.readPack(ctx, digest, shape.FooterOff(size), int64(shape.Files)*packfile.EntrySize)
	if err != nil {
		return nil, size, err
	}
	_, files, err = shape.Parse(header, table, size)
	return files, size, err
}

// listed calls do for every pack in the object store.
func (s *Store) listed(ctx context.Context, do func(digest gear.Name) error) error {
	for info, err := range s.objs.List(ctx, keyPrefix, "") {
		if err != nil {
			return fmt.Errorf("list packs in the object store: %w", err)
		}
		b, err := hex.DecodeString(strings.TrimPrefix(info.Key, keyPrefix))
		if err != nil || len(b) != len(gear.Name{}) {
			continue // not ours
		}
		if err := do(gear.Name(b)); err != nil {
			return err
		}
	}
	return nil
}

// verifyOrphans looks for objects that nothing names.
func (s *Store) verifyOrphans(ctx context.Context, o VerifyOptions, found func(Problem)) error {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	id := s.newWriterID()
	err = s.listed(ctx, func(digest gear.Name) error {
		known, err := s.facts.PackKnown(ctx, digest)
		if err != nil || known {
			return err
		}
		found(Problem{Pack: hex.EncodeToString(digest[:]), Orphan: true, What: "the catalogue does not name it"})
		if o.Repair {
			err = s.facts.Intend(ctx, id, digest) // the intent is recorded but never carried out
		}
		return err
	})
	if !o.Repair {
		return err
	}
	if err := errors.Join(err, s.facts.EndIntents(context.WithoutCancel(ctx), id)); err != nil {
		return err
	}
	return s.deletePacks(ctx)
}

// rebuildGrace is the time within which all layers must be converted again.
const rebuildGrace = 30 * 24 * time.Hour

// Rebuild records all packs in the object store that the catalogue does not name. It is
// for a catalogue that was lost. The contents of the packs are dead until the layers that
// hold them are converted again; these conversions then write nothing. Settle leaves the
// contents alone for rebuildGrace. Damaged packs are skipped and reported.
func (s *Store) Rebuild(ctx context.Context, found func(Problem)) (packs, files int, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return 0, 0, err
	}
	err = s.listed(ctx, func(digest gear.Name) error {
		known, err := s.facts.PackKnown(ctx, digest)
		if err != nil || known {
			return err
		}
		table, size, err := s.readTable(ctx, digest)
		if packfile.IsDamage(err) {
			found(Problem{Pack: hex.EncodeToString(digest[:]), Orphan: true, What: err.Error()})
			return nil
		}
		if err != nil {
			return err
		}
		p := gearfacts.NewPack{Digest: digest, Size: size, Files: table, NotBefore: now.Add(rebuildGrace)}
		for i := range table {
			p.Bytes += table[i].Stored
			p.Dense = p.Dense || gear.Encoding(table[i].Encoding) == gear.ZstdDict
		}
		packs++
		files += len(table)
		return s.facts.Record(ctx, gearfacts.Record{Packs: []gearfacts.NewPack{p}})
	})
	return packs, files, err
}
