package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

// shelf is a store in memory of which a test takes parts away and puts them back.
type shelf struct {
	objstore.Store
	t testing.TB
	// aside are the objects that were taken away.
	aside map[string][]byte
}

func newShelf(t testing.TB) *shelf {
	return &shelf{Store: memstore.New(nil), t: t, aside: map[string][]byte{}}
}

func (s *shelf) keys() (keys []string) {
	for info, err := range s.List(s.t.Context(), "", "") {
		if err != nil {
			s.t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func (s *shelf) bytes(key string) []byte {
	s.t.Helper()
	obj, err := s.Get(s.t.Context(), key, 0, -1)
	if err != nil {
		s.t.Fatal(err)
	}
	defer obj.Close()
	var b bytes.Buffer
	if _, err := obj.WriteTo(&b); err != nil {
		s.t.Fatal(err)
	}
	return b.Bytes()
}

// take takes the objects away that are chosen, and leaves others in their place.
func (s *shelf) take(chosen func(key string) bool, instead map[string][]byte) {
	s.t.Helper()
	for _, key := range s.keys() {
		if chosen(key) {
			s.aside[key] = s.bytes(key)
			s.must(s.Delete(s.t.Context(), key))
		}
	}
	for key, b := range instead {
		s.must(s.Put(s.t.Context(), key, b, false))
	}
}

// putBack makes the store what it was when take was called, as the mounting of a disk
// does: what was written in between is gone.
func (s *shelf) putBack(chosen func(key string) bool) {
	s.t.Helper()
	for _, key := range s.keys() {
		if chosen(key) {
			s.must(s.Delete(s.t.Context(), key))
		}
	}
	for key, b := range s.aside {
		s.must(s.Put(s.t.Context(), key, b, false))
	}
	clear(s.aside)
}

func (s *shelf) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func everything(string) bool { return true }

func below(prefixes ...string) func(string) bool {
	return func(key string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
	}
}

// restart ends the registry and begins another over the same catalogue and store.
func (b *bed) restart(t testing.TB) {
	t.Helper()
	reg, err := registry.New(t.Context(), b.Cat, b.Store, &registry.Options{Clock: b.Clock.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { reg.Close(context.Background()) })
	b.Registry = reg
}

// TestStoreAwayLosesNothing runs each command while the store, or a part of it, is away,
// and then puts it back: every image can be pulled again, and meanwhile no command says
// that all is well.
func TestStoreAwayLosesNothing(t *testing.T) {
	other := newShelf(t)
	newBed(t, other, registry.Options{}).PushImage("theirs", 77, "v1")
	theirs, theirBlobs := map[string][]byte{}, map[string][]byte{}
	for _, key := range other.keys() {
		theirs[key] = other.bytes(key)
		if below("docker/")(key) {
			theirBlobs[key] = theirs[key]
		}
	}
	states := map[string]struct {
		taken   func(key string) bool
		instead map[string][]byte
	}{
		"all away":                  {taken: everything},
		"the tree of blobs away":    {taken: below("docker/")},
		"the blobs of sha256 away":  {taken: below("docker/registry/v2/blobs/sha256/")},
		"our own objects away":      {taken: below("slipway/")},
		"the store of another":      {everything, theirs},
		"the blobs of another":      {below("docker/"), theirBlobs},
		"half of the objects away":  {taken: func(key string) bool { return below("docker/")(key) && key[len(key)-10] < '8' }},
		"an identity that is cut":   {below("docker/"), map[string][]byte{"docker/registry/v2/blobs/sha256/slipway-registry": nil}},
		"all but the identity away": {taken: func(key string) bool { return strings.HasSuffix(key, "/data") }},
		"nothing away, no identity": {taken: func(key string) bool { return strings.Contains(key, "slipway-registry") || key == "slipway/registry" }},
		"nothing away":              {taken: func(string) bool { return false }},
		"objects cut short":         {taken: func(string) bool { return false }},
	}
	commands := map[string]func(b *bed) error{
		"repair": func(b *bed) error { return b.clean(registry.FsckOptions{Repair: true}) },
		"quick repair, quarantine emptied": func(b *bed) error {
			return b.clean(registry.FsckOptions{Quick: true, Repair: true, EmptyQuarantine: true})
		},
		"collect": func(b *bed) error {
			_, err := b.Collect(b.T.Context(), registry.CollectOptions{Now: true, Untagged: true})
			return err
		},
		"retain": func(b *bed) error {
			_, err := b.Retain(b.T.Context(), []registry.RetentionRule{{Repositories: everything, KeepNewest: 1}}, registry.RetainOptions{Now: true})
			return err
		},
		"back up": func(b *bed) error {
			_, err := b.Backup(b.T.Context(), b.T.TempDir(), registry.BackupOptions{})
			return err
		},
		"start": func(b *bed) error { b.restart(b.T); return errors.New("says nothing") },
		"push again": func(b *bed) error {
			_, err := b.PushBlob(b.T.Context(), "new", oci.SHA256(registrytest.Content(99, 90_000)), 90_000, bytes.NewReader(registrytest.Content(99, 90_000)))
			return err
		},
	}
	n := 0
	for _, state := range slices.Sorted(maps.Keys(states)) {
		for _, command := range slices.Sorted(maps.Keys(commands)) {
			if n++; !registrytest.Chosen(n, 5) {
				continue
			}
			t.Run(state+"/"+command, func(t *testing.T) {
				store := newShelf(t)
				b := newBed(t, store, registry.Options{})
				for i := range uint64(12) {
					b.PushImage(fmt.Sprintf("r%d", i), i, "v1")
				}
				b.putPack("a pack", 1)
				b.Clock.Add(time.Minute)
				want := registrytest.Reachable(t, b)
				how := states[state]
				store.take(how.taken, how.instead)
				lacks := slices.ContainsFunc(slices.Collect(maps.Keys(store.aside)), func(key string) bool {
					return strings.HasSuffix(key, "/data") || strings.Contains(key, "/packs/")
				})
				if strings.HasPrefix(state, "objects cut") {
					for _, key := range store.keys() {
						if strings.HasSuffix(key, "/data") {
							store.aside[key] = store.bytes(key)
							store.must(store.Put(t.Context(), key, store.aside[key][:1000], false))
							lacks = true
						}
					}
					b.Clock.Add(time.Minute)
				}
				err := commands[command](b)
				if away := b.CheckStore(t.Context()); command != "push again" && lacks && err == nil && (away != nil || command != "collect" && command != "retain") {
					t.Error("it says that all is well")
				}
				store.putBack(func(key string) bool { return how.taken(key) })
				b.Clock.Add(time.Minute)
				if err := b.CheckStore(t.Context()); err != nil {
					t.Fatalf("the store is back, and: %v", err)
				}
				if err := b.clean(registry.FsckOptions{Repair: true}); err != nil {
					t.Errorf("repair with the store back: %v", err)
				}
				now := registrytest.Reachable(t, b)
				for name := range want {
					if now[name] != want[name] {
						t.Errorf("%s is lost", name)
					}
				}
			})
		}
	}
}

// clean is Fsck that fails where problems remain.
func (b *bed) clean(o registry.FsckOptions) error {
	rep, err := b.Fsck(b.T.Context(), o)
	if err == nil && !rep.Clean() {
		err = fmt.Errorf("problems remain: %v", kinds(rep))
	}
	return err
}

// TestStoreAwayAnswers: what clients are told while the store is away, and that it is
// noticed by itself when it is back.
func TestStoreAwayAnswers(t *testing.T) {
	store := newShelf(t)
	b := newBed(t, store, registry.Options{})
	_, _, _, large := b.PushImage("a", 1, "v1")
	ctx := t.Context()
	unavailable := func(doing string, err error) {
		t.Helper()
		var e *oci.Error
		if !errors.As(err, &e) || e.Code != oci.CodeUnavailable || e.RetryAfter <= 0 {
			t.Errorf("%s: got %v, want that it is unavailable, and until when", doing, err)
		}
	}
	push := func() error {
		data := registrytest.Content(5, 80_000)
		_, err := b.PushBlob(ctx, "a", oci.SHA256(data), int64(len(data)), bytes.NewReader(data))
		return err
	}
	for round := range 2 {
		store.take(everything, nil)
		if round == 0 { // the push is the first to notice
			unavailable("push", push())
		}
		_, err := registrytest.ReadBlob(ctx, b, "a", large.Digest)
		unavailable("read", err)
		_, err = b.ResolveBlob(ctx, "a", large.Digest)
		unavailable("head", err)
		unavailable("push", push())
		var away *registry.StoreError
		if err := b.Ready(ctx); !errors.As(err, &away) {
			t.Errorf("ready: got %v, want what is wrong with the store", err)
		}
		store.putBack(everything)
		if err := b.Ready(ctx); err != nil {
			t.Errorf("ready again: %v", err)
		}
		registrytest.Reachable(t, b)
	}
	if err := push(); err != nil {
		t.Errorf("push to the store that is back: %v", err)
	}
}

// TestStoreIdentityCrash ends the first start after each write: the next goes on, and
// the store is the registry's.
func TestStoreIdentityCrash(t *testing.T) {
	for n := range 4 {
		store := &putsFail{shelf: newShelf(t), left: n}
		b := newBed(t, store, registry.Options{})
		store.left = 1000
		b.restart(t)
		if err := b.CheckStore(t.Context()); err != nil {
			t.Errorf("after %d writes: %v", n, err)
		}
		if got := len(store.keys()); got != 2 {
			t.Errorf("after %d writes: the store holds %v, want the identity", n, store.keys())
		}
		store.take(everything, nil)
		b.restart(t) // it serves what it can
		if err := b.CheckStore(t.Context()); err == nil {
			t.Errorf("after %d writes: an empty store is taken for the registry's", n)
		}
	}
}

// putsFail is a store of which only some writes succeed.
type putsFail struct {
	*shelf
	left int
}

func (s *putsFail) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	if s.left--; s.left < 0 {
		return objstore.ErrNoSpace
	}
	return s.shelf.Put(ctx, key, data, ifAbsent)
}

// TestStoreOfAnotherIsRefused: a new catalogue over a store that has one, and a store
// that is adopted although it lacks all.
func TestStoreOfAnotherIsRefused(t *testing.T) {
	store := newShelf(t)
	newBed(t, store, registry.Options{}).PushImage("a", 1, "v1")
	second := newBed(t, newShelf(t), registry.Options{}) // a catalogue of its own
	second.PushImage("b", 2, "v1")
	second.Store = store
	second.restart(t)
	var away *registry.StoreError
	for _, adopt := range []bool{false, true} {
		if _, err := second.Fsck(t.Context(), registry.FsckOptions{Repair: true, AdoptStore: adopt, GiveUpMany: true}); !errors.As(err, &away) || !away.Other {
			t.Errorf("repair (adopt %t): got %v, want that the store is another registry's", adopt, err)
		}
	}
	empty := newShelf(t)
	second.Store = empty
	second.restart(t)
	if err := second.clean(registry.FsckOptions{Repair: true}); !errors.As(err, &away) || away.Other {
		t.Errorf("repair of an empty store: got %v, want that it is empty", err)
	}
	rep, err := second.Fsck(t.Context(), registry.FsckOptions{Repair: true, AdoptStore: true, GiveUpMany: true})
	if err != nil || rep.Clean() {
		t.Errorf("repair of an adopted store: %v, %v; want that the images remain incomplete", kinds(rep), err)
	}
	second.PushImage("b", 2, "v1")
	if err := second.clean(registry.FsckOptions{Repair: true}); err != nil {
		t.Errorf("after the push: %v", err)
	}
	registrytest.Reachable(t, second)
}
