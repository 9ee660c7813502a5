package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/retention"

	"example.org/slipway/registry/backup"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

func everything(string) bool { return true }

func below(prefixes ...string) func(string) bool {
	return func(key string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
	}
}

// TestStoreAwayLosesNothing runs each command while the store, or a part of it, is away, and then
// puts it back. Every image can then be pulled again, and no command may report meanwhile that all
// is well.
func TestStoreAwayLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	other := registrytest.NewShelf(t)
	newBed(t, other, registry.Options{}).PushImage("theirs", 77, "v1")
	theirs, theirBlobs := map[string][]byte{}, map[string][]byte{}
	for _, key := range other.Keys() {
		theirs[key] = other.Bytes(key)
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
		"repair": func(b *bed) error { return b.Clean(check.Options{Repair: true}) },
		"quick repair, quarantine emptied": func(b *bed) error {
			return b.Clean(check.Options{Quick: true, Repair: true, EmptyQuarantine: true})
		},
		"collect": func(b *bed) error {
			_, err := b.Collect(b.T.Context(), registry.CollectOptions{Now: true, Untagged: true})
			return err
		},
		"retain": func(b *bed) error {
			_, err := retention.Apply(b.T.Context(), b.Registry, []retention.Rule{{Repositories: everything, KeepNewest: 1}}, retention.Options{Now: true})
			return err
		},
		"back up": func(b *bed) error {
			_, err := backup.Make(b.T.Context(), b.Registry, b.T.TempDir(), backup.Options{})
			return err
		},
		"start": func(b *bed) error { b.Restart(b.T); return errors.New("says nothing") },
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
				store := registrytest.NewShelf(t)
				b := newBed(t, store, registry.Options{})
				for i := range uint64(12) {
					b.PushImage(fmt.Sprintf("r%d", i), i, "v1")
				}
				b.PutPack("a pack", 1)
				b.Clock.Add(time.Minute)
				want := registrytest.Reachable(t, b)
				how := states[state]
				store.Take(how.taken, how.instead)
				lacks := slices.ContainsFunc(slices.Collect(maps.Keys(store.Aside)), func(key string) bool {
					return strings.HasSuffix(key, "/data") || strings.Contains(key, "/packs/")
				})
				if strings.HasPrefix(state, "objects cut") {
					for _, key := range store.Keys() {
						if strings.HasSuffix(key, "/data") {
							store.Aside[key] = store.Bytes(key)
							store.Must(store.Put(t.Context(), key, store.Aside[key][:1000], false))
							lacks = true
						}
					}
					b.Clock.Add(time.Minute)
				}
				err := commands[command](b)
				if away := b.CheckStore(t.Context()); command != "push again" && lacks && err == nil && (away != nil || command != "collect" && command != "retain") {
					t.Error("it says that all is well")
				}
				store.PutBack(func(key string) bool { return how.taken(key) })
				b.Clock.Add(time.Minute)
				if err := b.CheckStore(t.Context()); err != nil {
					t.Fatalf("the store is back, and: %v", err)
				}
				if err := b.Clean(check.Options{Repair: true}); err != nil {
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

// TestStoreAwayAnswers checks what clients are told while the store is away, and that the registry
// notices by itself when it is back.
func TestStoreAwayAnswers(t *testing.T) {
	store := registrytest.NewShelf(t)
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
		store.Take(everything, nil)
		if round == 0 { // the push is the first to notice
			unavailable("push", push())
		}
		_, err := registrytest.ReadBlob(ctx, b, "a", large.Digest)
		unavailable("read", err)
		_, err = b.ResolveBlob(ctx, "a", large.Digest)
		unavailable("head", err)
		unavailable("push", push())
		var away *storage.StoreError
		if err := b.Ready(ctx); !errors.As(err, &away) {
			t.Errorf("ready: got %v, want what is wrong with the store", err)
		}
		store.PutBack(everything)
		if err := b.Ready(ctx); err != nil {
			t.Errorf("ready again: %v", err)
		}
		registrytest.Reachable(t, b)
	}
	if err := push(); err != nil {
		t.Errorf("push to the store that is back: %v", err)
	}
}

// TestStoreIdentityCrash ends the first start after each write. The next start must complete it, so
// that the store becomes the registry's.
func TestStoreIdentityCrash(t *testing.T) {
	for n := range 4 {
		store := &putsFail{Shelf: registrytest.NewShelf(t), left: n}
		b := newBed(t, store, registry.Options{})
		store.left = 1000
		b.Restart(t)
		if err := b.CheckStore(t.Context()); err != nil {
			t.Errorf("after %d writes: %v", n, err)
		}
		if got := len(store.Keys()); got != 2 {
			t.Errorf("after %d writes: the store holds %v, want the identity", n, store.Keys())
		}
		store.Take(everything, nil)
		b.Restart(t) // it serves what it can
		if err := b.CheckStore(t.Context()); err == nil {
			t.Errorf("after %d writes: an empty store is taken for the registry's", n)
		}
	}
}

// putsFail is a store in which only some writes succeed.
type putsFail struct {
	*registrytest.Shelf
	left int
}

func (s *putsFail) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	if s.left--; s.left < 0 {
		return objstore.ErrNoSpace
	}
	return s.Shelf.Put(ctx, key, data, ifAbsent)
}

// TestStoreOfAnotherIsRefused covers a new catalogue over a store that already has one, and a store
// that is adopted although it lacks everything.
func TestStoreOfAnotherIsRefused(t *testing.T) {
	store := registrytest.NewShelf(t)
	newBed(t, store, registry.Options{}).PushImage("a", 1, "v1")
	second := newBed(t, registrytest.NewShelf(t), registry.Options{}) // a catalogue of its own
	second.PushImage("b", 2, "v1")
	second.Store = store
	second.Restart(t)
	var away *storage.StoreError
	for _, adopt := range []bool{false, true} {
		if _, err := check.Run(t.Context(), second.Registry, check.Options{Repair: true, AdoptStore: adopt, GiveUpMany: true}); !errors.As(err, &away) || !away.Other {
			t.Errorf("repair (adopt %t): got %v, want that the store is another registry's", adopt, err)
		}
	}
	empty := registrytest.NewShelf(t)
	second.Store = empty
	second.Restart(t)
	if err := second.Clean(check.Options{Repair: true}); !errors.As(err, &away) || away.Other {
		t.Errorf("repair of an empty store: got %v, want that it is empty", err)
	}
	rep, err := check.Run(t.Context(), second.Registry, check.Options{Repair: true, AdoptStore: true, GiveUpMany: true})
	if err != nil || rep.Clean() {
		t.Errorf("repair of an adopted store: %v, %v; want that the images remain incomplete", registrytest.Kinds(rep), err)
	}
	second.PushImage("b", 2, "v1")
	if err := second.Clean(check.Options{Repair: true}); err != nil {
		t.Errorf("after the push: %v", err)
	}
	registrytest.Reachable(t, second)
}
