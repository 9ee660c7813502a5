package check

import (
	"context"
	"fmt"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/storage"
)

// TooManyError is the error of a repair that would give up more contents than allowed.
// None of these contents was changed.
type TooManyError struct {
	// Found counts the contents that would be given up, and Of counts all contents. At
	// most Limit contents are given up unless Options.GiveUpMany is set.
	Found, Of, Limit int64
	// What describes in a phrase what is wrong with the contents.
	What string
}

// Error implements error.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%d contents %s, of %d that the catalogue has; a repair gives up %d at most unasked, as it may be the store or the catalogue that is wrong. "+
		"slipway fsck lists them. Bring back what is missing, or add --give-up-many to the repair", e.Found, e.What, e.Of, e.Limit)
}

// tally postpones the repairs that remove something until their number is known. Its fields are
// guarded by fsck.mu.
type tally struct {
	n     int64
	later []func(context.Context) error
}

// few postpones a repair. If GiveUpMany is set, it runs the repair at once.
func (f *fsck) few(ctx context.Context, t *tally, repair func(context.Context) error) error {
	if f.o.GiveUpMany {
		return repair(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.n++; t.n <= f.limit() {
		t.later = append(t.later, repair)
	} else {
		t.later = nil
	}
	return nil
}

// limit returns how many contents a repair gives up unless GiveUpMany is set: 1 % of
// them, but at least 10 and at most 10,000. The postponed repairs then take a few MB of
// memory.
func (f *fsck) limit() int64 { return max(10, min(f.extent.Contents/100, 10_000)) }

// doFew runs the postponed repairs if their number does not exceed the limit.
func (f *fsck) doFew(ctx context.Context, t *tally, what string) error {
	if t.n == 0 {
		return nil
	}
	if err := f.reg.CheckStore(ctx); err != nil { // the store may have become unavailable meanwhile
		return err
	}
	if t.n > f.limit() {
		return &TooManyError{Found: t.n, Of: f.extent.Contents, Limit: f.limit(), What: what}
	}
	for _, repair := range t.later {
		if err := repair(ctx); err != nil {
			return err
		}
	}
	return nil
}

// giveUp reports a missing or damaged content. The repair takes a good copy from
// quarantine. Without one it gives the content up, if there are few such contents.
func (f *fsck) giveUp(ctx context.Context, p Problem, same, repair func(context.Context) (bool, error)) error {
	settle := func(ctx context.Context) (err error) {
		if p.Hurts, err = f.hurts(ctx, p.Digest); err != nil {
			return err
		}
		return f.settle(ctx, p, same, repair)
	}
	if !f.o.Repair {
		return settle(ctx)
	}
	if p.Key != "" {
		if x := f.read(ctx, quarantineKey(p.Digest), p.Digest, func(int) {}); x.match && x.err == nil {
			p.Detail += "; the copy in quarantine is right"
			repair = func(ctx context.Context) (bool, error) { return f.putBack(ctx, p.Digest) }
			return settle(ctx)
		}
	}
	done, refused, err := f.bring(ctx, p, p.Digest)
	if done || err != nil {
		return err
	}
	if refused != "" { // the source may give the content with other credentials
		p.Detail += refused
		repair = nil
		return settle(ctx)
	}
	if p.Key == "" || p.Kind != ProblemCorrupt {
		if repair == nil {
			return settle(ctx)
		}
		return f.few(ctx, &f.lost, settle)
	}
	return f.few(ctx, &f.lost, func(ctx context.Context) (err error) {
		if p.Hurts, err = f.hurts(ctx, p.Digest); err != nil {
			return err
		}
		return f.quarantine(ctx, p, same)
	})
}

// quarantine moves a corrupt object into quarantine. It makes the copy before it takes
// any lock, because the object may be large.
func (f *fsck) quarantine(ctx context.Context, p Problem, same func(context.Context) (bool, error)) error {
	match, err := f.copyObject(ctx, storage.BlobKey(p.Digest), quarantineKey(p.Digest), p.Digest, false)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.Detail += "; it cannot be copied into quarantine: " + err.Error()
		return f.settle(ctx, p, same, nil)
	}
	moved := false
	if !match { // if the bytes match, the object is right after all
		err = f.settle(ctx, p, same, func(ctx context.Context) (_ bool, err error) {
			if moved, err = f.absent(ctx, p.Digest, false); err != nil || !moved {
				return moved, err
			}
			if f.up.Replica.Shared { // the check deletes the object later, as an unknown object, and then excludes pushes
				return true, nil
			}
			if err := f.up.Store.Delete(ctx, p.Key); err != nil {
				// The object is unknown now, and the check will find it again later.
				f.up.Log.Warn("remove an object after its copy went into quarantine", "key", p.Key, "err", err)
			}
			return true, nil
		})
	}
	if err == nil && !moved {
		err = f.up.Store.Delete(ctx, quarantineKey(p.Digest))
	}
	return err
}

// takeBack looks in the store and in quarantine for a content that the catalogue records
// as absent. The repair records that the content is present. found reports whether its
// bytes are there. back reports whether the catalogue has the content now.
func (f *fsck) takeBack(ctx context.Context, d oci.Digest) (found, back bool, err error) {
	for _, key := range []string{storage.BlobKey(d), quarantineKey(d)} {
		x := f.read(ctx, key, d, func(int) {})
		if err := ctx.Err(); err != nil {
			return false, false, err
		}
		if x.err != nil || !x.match {
			continue
		}
		found = true
		p := Problem{Kind: ProblemReturned, Digest: d, Key: key, Detail: fmt.Sprintf("its %d bytes are here and right, and the catalogue has it as absent", x.info.Size)}
		if p.Hurts, err = f.hurts(ctx, d); err != nil {
			return true, false, err
		}
		confirm := func(ctx context.Context) (bool, error) {
			absent, err := f.facts.Absent(ctx, []oci.Digest{d})
			_, still := absent[d]
			return still, err
		}
		err = f.settle(ctx, p, confirm, func(ctx context.Context) (bool, error) {
			back, err = f.recordBack(ctx, d, key, x.info.Size)
			return back, err
		})
		if err != nil || back {
			return true, back, err
		}
		break
	}
	// A push may have brought the content meanwhile.
	is, err := f.facts.Presence(ctx, []oci.Digest{d})
	return found, is[d] == repair.Object || is[d] == repair.Inline, err
}

// quarantinePrefix is the prefix of the keys in quarantine.
const quarantinePrefix = "slipway/quarantine/"

// digestInQuarantine is the inverse of quarantineKey.
func digestInQuarantine(key string) (oci.Digest, bool) {
	alg, hex, _ := strings.Cut(strings.TrimPrefix(key, quarantinePrefix), "/")
	d := oci.Digest(alg + ":" + hex)
	return d, oci.ValidDigest(d) && quarantineKey(d) == key
}

// countQuarantine counts the contents in quarantine.
func (f *fsck) countQuarantine(ctx context.Context) error {
	for info, err := range f.up.Store.List(ctx, quarantinePrefix, "") {
		if err != nil {
			return err
		}
		f.step(func(rep *Report) {
			rep.Quarantined, rep.QuarantinedBytes = rep.Quarantined+1, rep.QuarantinedBytes+info.Size
		})
	}
	return nil
}

// emptyQuarantine deletes what is in quarantine, except for the only good copy of a
// content that the catalogue names.
func (f *fsck) emptyQuarantine(ctx context.Context) error {
	for info, err := range f.up.Store.List(ctx, quarantinePrefix, "") {
		if err != nil {
			return err
		}
		needed, err := f.needsCopy(ctx, info.Key)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		if err := f.up.Store.Delete(ctx, info.Key); err != nil {
			return err
		}
		f.step(func(rep *Report) { rep.QuarantinedRemoved++ })
	}
	return nil
}
