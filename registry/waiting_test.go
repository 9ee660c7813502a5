package registry_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/registrytest"
)

// TestCollectBehindBackup checks that a collection that waits for a backup ends with its context,
// and that a dry run does not wait.
func TestCollectBehindBackup(t *testing.T) {
	b := newDiskBed(t)
	b.PushImage("a", 1, "v1")
	copying, goOn := make(chan struct{}, 1), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := backup.Make(t.Context(), b.Registry, filepath.Join(t.TempDir(), "deep", "er"), backup.Options{Progress: func(backup.Report) {
			select {
			case copying <- struct{}{}:
			default:
			}
			<-goOn
		}})
		done <- err
	}()
	<-copying
	if _, err := b.Collect(t.Context(), registry.CollectOptions{DryRun: true}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := b.Collect(ctx, registry.CollectOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil {
		t.Error(err)
	}
}

func TestFsckOneAtATime(t *testing.T) {
	b := newBed(t, nil, registry.Options{})
	b.PushImage("a", 1, "v1")
	asked := false
	b.Check(check.Options{Progress: func(check.Report) {
		if asked {
			return
		}
		asked = true
		if _, err := check.Run(t.Context(), b.Registry, check.Options{}); err == nil || !strings.Contains(err.Error(), "under way already") {
			t.Errorf("a second check: got %v", err)
		}
	}})
	if !asked {
		t.Error("there was no progress")
	}
	b.Check(check.Options{})
}

// TestMalformedDigests puts malformed digests into the catalogue.
func TestMalformedDigests(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for _, bad := range []string{"", "sha256", "sha256:", "sha256:0", "nosuch:00", strings.Repeat("x", 71)} {
		b := newBed(t, nil, registry.Options{})
		m, _, _, _ := b.PushImage("a", 1, "v1")
		b.SQL("UPDATE blobs SET content = NULL, digest = '" + bad + "' WHERE digest = " + registrytest.Quote(m.Digest))
		for _, o := range []check.Options{{}, {Repair: true}} {
			if rep := b.Check(o); rep.Counts[check.ProblemManifest] != 1 {
				t.Errorf("digest %q: got %v, want a malformed manifest", bad, rep.Counts)
			}
		}

		b = newBed(t, nil, registry.Options{})
		_, _, _, large := b.PushImage("a", 1, "v1")
		b.SQL("UPDATE blobs SET state = 2, digest = '" + bad + "' WHERE digest = " + registrytest.Quote(large.Digest))
		if rep, err := b.Collect(t.Context(), registry.CollectOptions{}); err != nil || rep.Contents != 1 {
			t.Errorf("digest %q: collect: got %+v, %v", bad, rep, err)
		}
		if left, err := b.Cat.Garbage.Deleting(t.Context(), 1); err != nil || len(left) > 0 {
			t.Errorf("digest %q: %v and %v are left", bad, left, err)
		}
	}
}
