package filestore

import (
	"context"
	"slices"

	"github.com/klauspost/compress/zstd"

	"example.org/slipway/gear"
)

// recodeMost is the maximum number of stored bytes of a batch that are recompressed so
// that no dictionary needs to be sent. It bounds the time that this takes.
const recodeMost = 256 << 10

// withoutDicts chooses the packs whose dictionaries are not sent. Without it, a batch of
// a few small contents would consist mostly of dictionary. If a dictionary is longer than
// the stored form of all contents that need it, it costs more than these contents gain by
// it. items has all contents of the batch.
func (b *batchReader) withoutDicts(ctx context.Context, items []entry) {
	type need struct {
		pack  gear.Name
		bytes int64
	}
	var needs []need
	total := int64(0)
	for i := range items {
		it := &items[i]
		if it.how != along || it.at.encoding != gear.ZstdDict {
			continue
		}
		if total += it.at.stored; total > recodeMost || it.at.size > alongBytes {
			return
		}
		k := slices.IndexFunc(needs, func(n need) bool { return n.pack == it.at.pack })
		if k < 0 {
			k = len(needs)
			needs = append(needs, need{pack: it.at.pack})
		}
		needs[k].bytes += it.at.stored
	}
	for _, n := range needs {
		// A dictionary that cannot be read is left to the code that reads the contents.
		if d, err := b.s.storedDict(ctx, n.pack); err == nil && n.bytes < int64(len(d)) {
			b.bare = append(b.bare, n.pack)
		}
	}
}

// recoder lends an encoder. The writers' encoder has a window of some MiB, which a
// process that only serves should not need.
func (s *Store) recoder() (*zstd.Encoder, error) {
	if z, ok := s.recoders.Get().(*zstd.Encoder); ok {
		return z, nil
	}
	return newEncoder(freshLevel, smallFile, 1)
}

// isBare reports whether a content is to be sent without its dictionary.
func (b *batchReader) isBare(it *entry) bool {
	return it.at.encoding == gear.ZstdDict && len(b.bare) > 0 && slices.Contains(b.bare, it.at.pack)
}

// room returns how many bytes a content may take in a window's buffer.
func (b *batchReader) room(it *entry) int {
	if b.isBare(it) {
		return int(max(it.at.size, it.at.stored))
	}
	return int(it.at.stored)
}

// recode recompresses, without a dictionary, the contents whose dictionaries are not
// sent. It closes the gaps that this leaves. A damaged content is later sent alone,
// unchanged.
func (b *batchReader) recode(ctx context.Context, w *window) {
	if len(b.bare) == 0 || w.buf == nil {
		return
	}
	z, err := b.s.recoder()
	if err != nil {
		w.err = err
		return
	}
	defer b.s.recoders.Put(z)
	end := headRoom
	for i := range w.items {
		it := &w.items[i]
		if it.how != along {
			continue
		}
		stored := w.buf[it.pos : it.pos+int(it.at.stored)]
		if b.isBare(it) {
			raw, err := b.s.decode(ctx, it.name, it.at, stored, b.raw)
			if err != nil {
				it.how = alone
				continue
			}
			b.raw = raw
			stored, it.at.encoding = (&codec{whole: z}).encode(it.at.size, raw, b.packed)
			if it.at.encoding != gear.Plain {
				b.packed = stored
			}
			it.at.stored = int64(len(stored))
		}
		it.pos = end
		end += copy(w.buf[end:], stored)
	}
}
