package integration

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/integration/internal/blockfs"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/wire"
	"example.org/slipway/integration/internal/workload"
)

// TestFullDisk fills the disk under the server. The server must refuse clearly, keep what it has
// acknowledged, and go on serving. Once there is space it must accept pushes again without a
// restart.
func TestFullDisk(t *testing.T) {
	disk := blockfs.NewLab(t).NewDisk(t, 128<<20)
	ballast := filepath.Join(disk.Dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	random := seeded(t)
	ledger := &workload.Ledger{}
	s := slipway.Start(t, filepath.Join(disk.Dir, "root"), nil)

	fill := func(prefix string) {
		t.Helper()
		refusal := workload.PushUntilError(t.Context(), s.Client, ledger, prefix, random.Uint64())
		checkRefusal(t, refusal)
		s.Alive()
		if err := ledger.Settle(t.Context(), s.Client); err != nil {
			t.Fatalf("with a full disk: %v", err)
		}
	}
	fill("full/first")
	acknowledged := ledger.Acknowledged()

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	pushWorks(t, s, "full/after-space-returned")
	fill("full/second")
	if ledger.Acknowledged() <= acknowledged {
		t.Error("no push was acknowledged after space had returned")
	}

	// A deletion must not need space that the disk does not have.
	im := imagetest.Hello(t)
	removeImage(t, s.Client, "full/after-space-returned", "v1")
	for _, b := range im.Blobs {
		if err := s.Client.DeleteBlob(t.Context(), "full/after-space-returned", b.Digest); err != nil &&
			wire.StatusOf(err) != http.StatusNotFound {
			t.Errorf("delete a blob on a full disk: %v", err)
		}
	}
	s.Stop()
	s.Run("fsck")
	disk.Discard(t)
}

// checkRefusal checks that a push to a full disk was refused clearly: status 507 with an error body
// of the specification, or status 500.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	var status *wire.StatusError
	if !errors.As(err, &status) {
		t.Fatalf("a push on a full disk ended with %v, want an answer with an error body", err)
	}
	if status.Status != http.StatusInsufficientStorage && status.Status != http.StatusInternalServerError || len(status.Codes) == 0 {
		t.Errorf("a push on a full disk got %v, want status 507 with an error body", status)
	}
	t.Logf("refusal: %v", status)
}

// pushWorks waits until an image can be pushed.
func pushWorks(t *testing.T, s *slipway.Server, repo string) {
	t.Helper()
	im := imagetest.Hello(t)
	var err error
	defer func() {
		if t.Failed() {
			t.Logf("last error: %v", err)
		}
	}()
	proc.Poll(t, 30*time.Second, "a push with space on the disk", func() bool {
		err = im.Push(t.Context(), s.Client, repo, "v1")
		return err == nil
	})
	if _, err := s.Client.CheckImage(t.Context(), repo, "v1"); err != nil {
		t.Fatal(err)
	}
}
