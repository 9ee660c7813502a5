package recipes

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/check"
	"example.org/slipway/registry/storage"
)

// TestKnownDamage checks that once a scrub has found a pack damaged that cannot be made
// again, clients are not told that its layers are here. So a push mends them, and no image
// is accepted that cannot be pulled. A quick check reports them.
func TestKnownDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	t.Parallel()
	b := newBed(t)
	layer := compressed(6, archive(1, 12))
	d := b.push(layer)
	b.putManifest(layer)
	b.drop()
	b.settle()
	b.pass(time.Hour)
	b.must(b.files.Housekeep(t.Context()))
	b.harm(b.objects(storage.PackPrefix)[0], func([]byte) []byte { return nil })
	b.keeper.p.ScrubEvery = time.Hour
	b.pass(2 * time.Hour)
	if rep, err := b.keeper.Scrub(t.Context()); err != nil || rep.Damaged == 0 {
		t.Fatalf("scrub: %+v, %v", rep, err)
	}
	b.restart()
	rep, err := check.Run(t.Context(), b.reg, check.Options{Quick: true})
	if err != nil || len(rep.Problems) != 1 || len(rep.Problems[0].Hurts) != 1 {
		t.Errorf("quick check: %+v, %v", rep.Problems, err)
	}
	b.restart()
	if _, err := b.reg.ResolveBlob(t.Context(), repo, d); !oci.HasCode(err, oci.CodeBlobUnknown) {
		t.Errorf("HEAD of a layer that cannot be rebuilt: %v", err)
	}
	m := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":2},`+
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}],"annotations":{"a":"b"}}`,
		oci.MediaTypeOCIManifest, oci.SHA256([]byte("{}")), d, len(layer))
	put := oci.PutManifest{Bytes: m, MediaType: oci.MediaTypeOCIManifest, Tags: []string{"v2"}}
	var e *oci.Error
	if _, err := b.reg.PutManifest(t.Context(), repo, put); !errors.As(err, &e) {
		t.Errorf("an image was accepted that cannot be pulled: %v", err)
	}
	b.push(layer)
	if _, err := b.reg.PutManifest(t.Context(), repo, put); err != nil {
		t.Errorf("the image with its layer pushed again: %v", err)
	}
	b.check("pushed again", layer)
}
