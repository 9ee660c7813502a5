package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/registrytest"
	"example.org/slipway/registry/storage"
)

// distantStore is a store that claims to be behind a network.
type distantStore struct{ objstore.Store }

func (distantStore) Distant()                 {}
func (s distantStore) Unwrap() objstore.Store { return s.Store }

// states are the things that can have happened to an object behind the registry's back. visible
// says that a look at the object, without reading it, shows the change.
var states = []struct {
	name    string
	visible bool
	change  func(b *bed, s *registrytest.BadSectors, key string, data []byte)
}{
	{"here", false, func(*bed, *registrytest.BadSectors, string, []byte) {}},
	{"gone", true, func(b *bed, _ *registrytest.BadSectors, key string, _ []byte) {
		registrytest.NoError(b.T, b.Store.Delete(b.T.Context(), key))
	}},
	{"empty", true, func(b *bed, _ *registrytest.BadSectors, key string, _ []byte) { b.Overwrite(key, nil) }},
	{"cut", true, func(b *bed, _ *registrytest.BadSectors, key string, data []byte) {
		b.Overwrite(key, data[:len(data)-1])
	}},
	{"longer", true, func(b *bed, _ *registrytest.BadSectors, key string, data []byte) {
		b.Overwrite(key, append(bytes.Clone(data), 0))
	}},
	{"flipped", false, func(b *bed, _ *registrytest.BadSectors, key string, data []byte) {
		other := bytes.Clone(data)
		other[len(data)/2] ^= 1
		b.Overwrite(key, other)
	}},
	{"flipped at the end", false, func(b *bed, _ *registrytest.BadSectors, key string, data []byte) {
		other := bytes.Clone(data)
		other[len(data)-1] ^= 1
		b.Overwrite(key, other)
	}},
	{"unreadable", false, func(_ *bed, s *registrytest.BadSectors, key string, _ []byte) { s.Set(key, true) }},
}

// forms are the ways to have a content accepted. bytes says that the client sends the bytes.
var forms = []struct {
	name  string
	bytes bool
	repo  string // the repository to read it from afterwards
	do    func(ctx context.Context, b *bed, data []byte) error
}{
	{"monolithic", true, "a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.PushBlob(ctx, "a", oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
		return err
	}},
	{"monolithic to another repository", true, "c", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.PushBlob(ctx, "c", oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
		return err
	}},
	{"post and put", true, "a", func(ctx context.Context, b *bed, data []byte) error {
		st, err := b.StartUpload(ctx, "a")
		if err == nil {
			_, err = b.CommitUpload(ctx, "a", st.ID, 0, -1, bytes.NewReader(data), oci.SHA256(data))
		}
		return err
	}},
	{"chunks", true, "a", func(ctx context.Context, b *bed, data []byte) error {
		st, err := b.StartUpload(ctx, "a")
		half := len(data) / 2
		if err == nil {
			_, err = b.AppendUpload(ctx, "a", st.ID, 0, int64(half), bytes.NewReader(data[:half]))
		}
		if err == nil {
			_, err = b.AppendUpload(ctx, "a", st.ID, int64(half), int64(len(data)-half), bytes.NewReader(data[half:]))
		}
		if err == nil {
			_, err = b.CommitUpload(ctx, "a", st.ID, oci.AtEnd, 0, nil, oci.SHA256(data))
		}
		return err
	}},
	{"mirrored bytes", true, "up/a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.AdoptBytes(ctx, "up/a", oci.SHA256(data), data)
		return err
	}},
	{"mirrored file", true, "up/a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.AdoptBlob(ctx, "up/a", oci.SHA256(data), int64(len(data)), b.spool(data))
		return err
	}},
	{"head", false, "a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.ResolveBlob(ctx, "a", oci.SHA256(data))
		return err
	}},
	{"mount", false, "m", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.MountBlob(ctx, "m", "a", oci.SHA256(data))
		return err
	}},
	{"link", false, "up/a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.LinkStored(ctx, "up/a", oci.SHA256(data))
		return err
	}},
	{"manifest", false, "a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.PutManifest(ctx, "a", oci.PutManifest{Bytes: imageOf(data), Tags: []string{"again"}})
		return err
	}},
	{"index", false, "a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.PutManifest(ctx, "a", oci.PutManifest{Bytes: indexOf(imageOf(data)), Tags: []string{"index"}})
		return err
	}},
	{"index of an index", false, "a", func(ctx context.Context, b *bed, data []byte) error {
		_, err := b.PutManifest(ctx, "a", oci.PutManifest{Bytes: indexOf(indexOf(imageOf(data))), Tags: []string{"index"}})
		return err
	}},
}

// imageOf returns an image manifest that names data as its config.
func imageOf(data []byte) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"x/y","digest":%q,"size":%d}}`,
		oci.MediaTypeOCIManifest, oci.SHA256(data), len(data))
}

// indexOf returns an index of one manifest.
func indexOf(m []byte) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"digest":%q,"size":%d}]}`,
		oci.MediaTypeOCIIndex, oci.SHA256(m), len(m))
}

// pushBelow pushes the manifests that are below what a form pushes.
func (b *bed) pushBelow(form string, data []byte) {
	below := map[string][][]byte{"index": {imageOf(data)}, "index of an index": {imageOf(data), indexOf(imageOf(data))}}[form]
	for _, m := range below {
		_, err := b.PutManifest(b.T.Context(), "a", oci.PutManifest{Bytes: m})
		registrytest.NoError(b.T, err)
	}
}

// TestAcknowledgedIsReadable checks that, whatever has happened to an object, what the registry
// acknowledges afterwards can be read. Otherwise the first read that shows the damage makes it
// known as missing, and a push repairs it. No read may ever end well with wrong bytes.
func TestAcknowledgedIsReadable(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	stores := map[string]func(t *testing.T, now func() time.Time) objstore.Store{
		"files": func(t *testing.T, _ func() time.Time) objstore.Store {
			s, err := fsstore.New(t.TempDir(), nil)
			registrytest.NoError(t, err)
			t.Cleanup(func() { s.Close() })
			return s
		},
		"memory": func(_ *testing.T, now func() time.Time) objstore.Store {
			return memstore.New(&memstore.Options{Now: now})
		},
		"distant": func(_ *testing.T, now func() time.Time) objstore.Store {
			return distantStore{memstore.New(&memstore.Options{Now: now})}
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			clock := registrytest.NewClock()
			sectors := &registrytest.BadSectors{}
			b := &bed{&registrytest.Bed{T: t, Root: t.TempDir(), Clock: clock, Store: objtest.Faulty(open(t, clock.Now), sectors.Faults())}}
			if name == "distant" { // As looks at the outermost store first
				b.Store = distantStore{b.Store}
			}
			b.Open(registry.Options{Partial: mirrored})
			seed := uint64(len(name)) // so that each store meets other combinations
			for _, state := range states {
				for _, form := range forms {
					for _, size := range []int{20_000, 300_000, 2 << 20} {
						if seed++; !registrytest.Chosen(int(seed), 11) {
							continue
						}
						// Each form meets each of these in some state.
						before := []string{"", "read", "restart"}[(seed+seed/3)%3]
						data := registrytest.Content(seed, size)
						what := fmt.Sprintf("%s, object of %d bytes is %s, before that %q", form.name, size, state.name, before)
						visible := state.visible
						switch {
						case strings.HasPrefix(form.name, "index"): // the object is not read
						case name == "distant": // its tag is looked at
							visible = visible || state.name != "unreadable"
						case size <= 1<<20: // the object is read, unless it was read before and looks the same
							visible = state.name != "unreadable" || before != ""
						}
						b.trial(what, before, data, visible, form.bytes, form.repo,
							func() {
								b.pushBelow(form.name, data)
								state.change(b, sectors, storage.BlobKey(oci.SHA256(data)), data)
							},
							func() error { return form.do(t.Context(), b, data) })
					}
				}
			}
		})
	}
}

// trial pushes a blob, has its object changed, and has it accepted again.
func (b *bed) trial(what, before string, data []byte, visible, brings bool, repo string, change func(), accept func() error) {
	b.T.Helper()
	ctx, d := b.T.Context(), oci.SHA256(data)
	b.PushBytes("a", data)
	b.Clock.Add(time.Second) // so that the change has a later time
	change()
	if len(what)%2 == 0 { // a look at it may be out of date, or not
		b.Clock.Add(2 * time.Minute)
	}
	read := func(repo string) bool {
		got, err := registrytest.ReadBlob(ctx, b, repo, d)
		if err == nil && !bytes.Equal(got, data) {
			b.T.Fatalf("%s: a read of %s gives wrong bytes and no error", what, repo)
		}
		return err == nil
	}
	switch before {
	case "read":
		read("a")
	case "restart":
		b.ForgetRAM()
	}
	err := accept()
	switch {
	case err != nil && brings:
		b.T.Fatalf("%s: %v", what, err)
	case err == nil && visible && !brings && !read(repo):
		b.T.Fatalf("%s: it was acknowledged, and cannot be read", what)
	case err == nil && brings && !read(repo):
		b.T.Fatalf("%s: its bytes were acknowledged, and cannot be read", what)
	case err != nil && !oci.HasCode(err, oci.CodeBlobUnknown) && !oci.HasCode(err, oci.CodeManifestBlobUnknown):
		b.T.Fatalf("%s: got %v, want that it is missing", what, err)
	}
	if err == nil && !read(repo) { // the read revealed the damage
		if _, err := b.ResolveBlob(ctx, "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
			b.T.Fatalf("%s: after a read that failed, HEAD: %v", what, err)
		}
		if accept() == nil {
			b.T.Fatalf("%s: after a read that failed it is acknowledged again", what)
		}
	}
	b.PushBytes("a", data)
	if !read("a") {
		b.T.Fatalf("%s: a push does not mend it", what)
	}
	if _, err := b.ResolveBlob(ctx, "a", d); err != nil {
		b.T.Fatalf("%s: once it is mended, HEAD: %v", what, err)
	}
}

// TestReadWhileStoredAnew checks a read of an object that others replace meanwhile. The reader gets
// all of the bytes. If some of the replacements are damaged, it gets the right bytes or an error.
func TestReadWhileStoredAnew(t *testing.T) {
	files, err := fsstore.New(t.TempDir(), nil)
	registrytest.NoError(t, err)
	t.Cleanup(func() { files.Close() })
	b := newBed(t, files, registry.Options{})
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	for i := range rounds {
		data := registrytest.Content(uint64(i), []int{300_000, 1<<20 + 1, 3 << 20, 5 << 20}[i%4])
		d := b.PushBytes("a", data).Digest
		versions := [][]byte{data, data}
		if i%8 >= 4 {
			versions[1] = bytes.Clone(data)
			versions[1][(i * len(data) / 40)] ^= 1
		}
		b.Overwrite(storage.BlobKey(d), versions[0])
		b.ForgetRAM()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					b.Overwrite(storage.BlobKey(d), versions[n%2])
				}
			}
		}()
		for range 3 {
			got, err := registrytest.ReadBlob(t.Context(), b, "a", d)
			if err == nil && !bytes.Equal(got, data) {
				t.Errorf("round %d, %d bytes: a read gives wrong bytes and no error", i, len(data))
			}
			if err != nil && i%8 < 4 {
				t.Errorf("round %d, %d bytes: %v", i, len(data), err)
			}
		}
		close(stop)
		<-stopped
		b.PushBytes("a", data)
		b.WantBlob("a", data)
	}
}

// TestRangeOfDamaged checks that a range of an object that no client has read yet is served only if
// the whole object has its digest.
func TestRangeOfDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for i := range 2 * len(states) {
		state, distant := states[i/2], i%2 == 1
		sectors := &registrytest.BadSectors{}
		b := &bed{&registrytest.Bed{T: t, Root: t.TempDir(), Clock: registrytest.NewClock()}}
		b.Store = objtest.Faulty(memstore.New(&memstore.Options{Now: b.Clock.Now}), sectors.Faults())
		if distant {
			b.Store = distantStore{b.Store}
		}
		b.Open(registry.Options{})
		for i, size := range []int{100_000, 1 << 20, 1<<20 + 1, 3 << 20} {
			data := registrytest.Content(uint64(i), size)
			d := b.PushBytes("a", data).Digest
			b.Clock.Add(time.Second)
			b.ForgetRAM()
			state.change(b, sectors, storage.BlobKey(d), data)
			for _, off := range []int{0, size / 2, size - 10} {
				var got []byte
				c, err := b.GetBlobRange(t.Context(), "a", d, int64(off), 10)
				if err == nil {
					got, err = io.ReadAll(c)
					registrytest.NoError(t, c.Close())
				}
				switch {
				case err == nil && !bytes.Equal(got, data[off:off+10]):
					t.Errorf("%s, distant %v, %d bytes: wrong bytes at %d", state.name, distant, size, off)
				case (err == nil) != (state.name == "here"):
					t.Errorf("%s, distant %v, %d bytes: at %d: %v", state.name, distant, size, off, err)
				}
			}
		}
	}
}

// TestCopiedObject checks that an object that somebody stored anew behind the registry's back, with
// the same bytes and another tag, is accepted, and is read once for that.
func TestCopiedObject(t *testing.T) {
	reads := 0
	b := newBed(t, distantStore{objtest.Faulty(memstore.New(nil), objtest.Faults{Before: func(op, _ string) error {
		if op == objtest.OpGet {
			reads++
		}
		return nil
	}})}, registry.Options{})
	data := registrytest.Content(1, 300_000)
	d := b.PushBytes("a", data).Digest
	head := func(want int) {
		t.Helper()
		reads = 0
		b.ForgetRAM()
		if _, err := b.ResolveBlob(t.Context(), "a", d); err != nil || reads != want {
			t.Errorf("HEAD reads the object %d times, want %d: %v", reads, want, err)
		}
	}
	head(0)
	b.Overwrite(storage.BlobKey(d), data)
	head(1)
	head(0)
	b.SQL(`UPDATE blobs SET tag = ''`) // as after an adoption
	b.Check(check.Options{})
	b.Overwrite(storage.BlobKey(d), registrytest.Content(2, 300_000))
	b.ForgetRAM()
	if _, err := b.ResolveBlob(t.Context(), "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("HEAD of other bytes, once a check has noted the tag: %v", err)
	}
}

// TestFailureThatPasses checks that an error that says nothing about the content does not mark it
// as damaged, and neither does damage that is gone when the whole object is read again.
func TestFailureThatPasses(t *testing.T) {
	for _, tt := range []struct {
		err  error
		here bool // the content counts as present after the failure
	}{
		{&objstore.BusyError{Err: errors.New("slow down")}, true},
		{syscall.EMFILE, true},
		{context.DeadlineExceeded, true},
		{syscall.EIO, false},
		{syscall.EUCLEAN, false},
		{objstore.ErrCorrupt, false},
		{io.ErrUnexpectedEOF, true}, // the object is there, with its size
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			var failing error
			b := newBed(t, objtest.Faulty(memstore.New(nil), objtest.Faults{Before: func(op, _ string) error {
				if op == objtest.OpRead {
					return failing
				}
				return nil
			}}), registry.Options{})
			data := registrytest.Content(1, 300_000)
			d := b.PushBytes("a", data).Digest
			b.ForgetRAM()
			failing = tt.err
			if _, err := registrytest.ReadBlob(t.Context(), b, "a", d); err == nil {
				t.Fatal("the read succeeds")
			}
			failing = nil
			if _, err := b.ResolveBlob(t.Context(), "a", d); (err == nil) != tt.here {
				t.Errorf("HEAD afterwards: %v", err)
			}
			b.WantBlob("a", data)
			if _, err := b.ResolveBlob(t.Context(), "a", d); err != nil {
				t.Errorf("HEAD once it was read: %v", err)
			}
		})
	}
}

// TestDamagedCatalogue checks that bytes in the catalogue that do not match their digest are not
// served, and that a push repairs them.
func TestDamagedCatalogue(t *testing.T) {
	b := newBed(t, nil, registry.Options{})
	ctx := t.Context()
	manifest, config, _, _ := b.PushImage("a", 1, "v1")
	good, err := b.GetManifest(ctx, "a", "v1")
	registrytest.NoError(t, err)
	small, err := registrytest.ReadBlob(ctx, b, "a", config.Digest)
	registrytest.NoError(t, err)
	for _, damage := range []string{"content = CAST('{}' AS BLOB)", "content = substr(content, 2) || 'x'", "content = x''", "size = size + 1"} {
		b.SQL("UPDATE blobs SET " + damage + " WHERE content IS NOT NULL")
		b.ForgetRAM()
		for _, ref := range []string{"v1", string(manifest.Digest)} {
			m, err := b.GetManifest(ctx, "a", ref)
			if err == nil && oci.SHA256(m.Bytes) != manifest.Digest {
				t.Errorf("%s: GET of %s gives wrong bytes", damage, ref)
			}
			if _, headErr := b.ResolveManifest(ctx, "a", ref); (err == nil) != (headErr == nil) || err != nil && !oci.HasCode(headErr, oci.CodeManifestUnknown) {
				t.Errorf("%s: GET of %s: %v, HEAD: %v", damage, ref, err, headErr)
			}
		}
		if got, err := registrytest.ReadBlob(ctx, b, "a", config.Digest); err == nil && !bytes.Equal(got, small) {
			t.Errorf("%s: a small blob gives wrong bytes", damage)
		}
		b.PushBytes("a", small)
		b.PushBytes("a", registrytest.Content(1, 5000))
		if _, err := b.PutManifest(ctx, "a", oci.PutManifest{Bytes: good.Bytes, Tags: []string{"v1"}}); err != nil {
			t.Fatalf("%s: push the manifest again: %v", damage, err)
		}
		b.ForgetRAM()
		b.WantBlob("a", small)
		if m, err := b.GetManifest(ctx, "a", "v1"); err != nil || !bytes.Equal(m.Bytes, good.Bytes) {
			t.Errorf("%s: after the push: %v", damage, err)
		}
	}
}

// TestAcknowledgedRow checks that what is accepted although its row in the catalogue was damaged
// can be read afterwards.
func TestAcknowledgedRow(t *testing.T) {
	b := newBed(t, nil, registry.Options{Partial: mirrored})
	ctx := t.Context()
	seed := uint64(0)
	for _, damage := range []string{"content = CAST('{}' AS BLOB)", "content = substr(content, 2) || 'x'", "content = x''", "size = size + 1"} {
		for _, form := range forms {
			for _, before := range []string{"", "restart", "read"} {
				seed++
				data := registrytest.Content(seed, 900)
				d := b.PushBytes("a", data).Digest
				b.SQL("UPDATE blobs SET " + damage + " WHERE digest = '" + string(d) + "'")
				b.ForgetRAM()
				if before == "read" {
					if got, err := registrytest.ReadBlob(ctx, b, "a", d); err == nil && !bytes.Equal(got, data) {
						t.Errorf("%s: a read gives wrong bytes", damage)
					}
				}
				err := form.do(ctx, b, data)
				switch {
				case err != nil && form.bytes:
					t.Errorf("%s, %s: %v", damage, form.name, err)
				case err != nil && !oci.HasCode(err, oci.CodeBlobUnknown) && !oci.HasCode(err, oci.CodeManifestBlobUnknown):
					t.Errorf("%s, %s: got %v, want that it is missing", damage, form.name, err)
				}
				if before == "restart" {
					b.ForgetRAM()
				}
				if got, readErr := registrytest.ReadBlob(ctx, b, form.repo, d); err == nil && (readErr != nil || !bytes.Equal(got, data)) {
					t.Errorf("%s, %s: it was acknowledged, and reads as %d bytes, %v", damage, form.name, len(got), readErr)
				}
			}
		}
	}
}

// TestSuspectOutlivesRestart checks that the next process knows what a failed read showed.
func TestSuspectOutlivesRestart(t *testing.T) {
	b := newBed(t, nil, registry.Options{})
	data := registrytest.Content(1, 300_000)
	d := b.PushBytes("a", data).Digest
	other := bytes.Clone(data)
	other[0] ^= 1
	b.Clock.Add(time.Second)
	b.Overwrite(storage.BlobKey(d), other)
	if _, err := registrytest.ReadBlob(t.Context(), b, "a", d); err == nil {
		t.Fatal("wrong bytes are served")
	}
	reg, err := registry.New(t.Context(), b.Cat, b.Store, &registry.Options{Clock: b.Clock.Now})
	registrytest.NoError(t, err)
	defer reg.Close(t.Context())
	if _, err := reg.ResolveBlob(t.Context(), "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("HEAD at the next process: %v", err)
	}
	if _, err := reg.MountBlob(t.Context(), "b", "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("mount at the next process: %v", err)
	}
}

// TestSuspectAtOnce checks that no answer from RAM follows a failed read, even if somebody else who
// noticed the damage was first to record it.
func TestSuspectAtOnce(t *testing.T) {
	sectors := &registrytest.BadSectors{}
	b := newBed(t, objtest.Faulty(memstore.New(nil), sectors.Faults()), registry.Options{})
	data := registrytest.Content(1, 300_000)
	d := b.PushBytes("a", data).Digest
	b.ForgetRAM()
	_, err := b.ResolveBlob(t.Context(), "a", d) // RAM has it
	registrytest.NoError(t, err)
	sectors.Set(storage.BlobKey(d), true)
	_, _, err = repair.New(b.Cat.DB).MarkSuspect(t.Context(), d)
	registrytest.NoError(t, err)
	if _, err := registrytest.ReadBlob(t.Context(), b, "a", d); err == nil {
		t.Fatal("the read succeeds")
	}
	if _, err := b.ResolveBlob(t.Context(), "a", d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("HEAD afterwards: %v, want that it is missing", err)
	}
}

// TestFsckEndsSuspicion checks that each check reads what is suspect, and finds out whether it is
// damaged or right. Until then clients must push it again.
func TestFsckEndsSuspicion(t *testing.T) {
	for _, o := range []check.Options{{}, {Quick: true}, {Repair: true}, {Quick: true, Repair: true}} {
		t.Run(fmt.Sprintf("quick %v, repair %v", o.Quick, o.Repair), func(t *testing.T) {
			p := registrytest.Plant(t)
			for _, d := range []oci.Digest{p.A.Digest, p.Config.Digest, p.Small.Digest, p.Large.Digest} {
				_, _, err := repair.New(p.Cat.DB).MarkSuspect(t.Context(), d)
				registrytest.NoError(t, err)
			}
			p.ForgetRAM()
			if _, err := p.ResolveBlob(t.Context(), "a", p.Large.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
				t.Errorf("before the check: %v, want that it is missing", err)
			}
			registrytest.NoError(t, p.Clean(o))
			for _, d := range []oci.Digest{p.Config.Digest, p.Small.Digest, p.Large.Digest} {
				if _, err := p.ResolveBlob(t.Context(), "a", d); err != nil {
					t.Errorf("after the check: %v", err)
				}
			}
			p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100_000))
			_, _, err := repair.New(p.Cat.DB).MarkSuspect(t.Context(), p.Large.Digest)
			registrytest.NoError(t, err)
			if rep := p.Check(o); rep.Counts[check.ProblemCorrupt] != 1 {
				t.Errorf("other bytes of the same size: fsck found %v", registrytest.Kinds(rep))
			}
		})
	}
}

// TestRepairOfUnreadable checks that what cannot be read, and stays where it is, is pushed again
// after a repair.
func TestRepairOfUnreadable(t *testing.T) {
	sectors := &registrytest.BadSectors{}
	b := newBed(t, objtest.Faulty(memstore.New(nil), sectors.Faults()), registry.Options{})
	_, _, _, large := b.PushImage("a", 1, "v1")
	b.Clock.Add(time.Minute)
	sectors.Set(storage.BlobKey(large.Digest), true)
	if rep := b.Check(check.Options{Repair: true}); rep.Clean() {
		t.Errorf("fsck found %v", registrytest.Kinds(rep))
	}
	if _, err := b.ResolveBlob(t.Context(), "a", large.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("HEAD after the repair: %v, want that it is missing", err)
	}
	b.PushImage("a", 1, "v1")
	registrytest.NoError(t, b.Clean(check.Options{}))
	registrytest.Reachable(t, b)
}
