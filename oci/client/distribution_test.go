package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// distribution starts Distribution's registry and returns its URL.
func distribution(t *testing.T) string {
	t.Helper()
	return "http://" + backendtest.Distribution(t, "")
}

func TestDistribution(t *testing.T) {
	c := dial(t, distribution(t), nil)
	ctx := t.Context()
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	d := oci.SHA256(content)

	t.Run("blobs", func(t *testing.T) {
		_, err := c.ResolveBlob(ctx, "a/b", d)
		wantCode(t, err, oci.CodeBlobUnknown)
		if _, err := c.PushBlob(ctx, "a/b", d, -1, io.MultiReader(bytes.NewReader(content))); err != nil {
			t.Fatal(err)
		}
		got, desc, err := readRange(ctx, c, d, 0, -1)
		if err == nil {
			t.Fatalf("got %d bytes of another repository", len(got))
		}
		if _, err := c.MountBlob(ctx, "a", "a/b", d); err != nil {
			t.Fatal(err)
		}
		if got, desc, err = readRange(ctx, c, d, 0, -1); err != nil || !bytes.Equal(got, content) || desc.Size != int64(len(content)) {
			t.Fatalf("got %d bytes, %+v, %v", len(got), desc, err)
		}
		if got, _, err = readRange(ctx, c, d, 1<<20, 100); err != nil || !bytes.Equal(got, content[1<<20:1<<20+100]) {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
		_, _, err = readRange(ctx, c, d, int64(len(content)), 1)
		wantCode(t, err, oci.CodeRangeInvalid)
		_, err = c.PushBlob(ctx, "a", d, 5, strings.NewReader(hello))
		wantCode(t, err, oci.CodeDigestInvalid)
		_, err = c.MountBlob(ctx, "a", "a/b", digest)
		wantCode(t, err, oci.CodeBlobUnknown)
		if _, err := c.PushBlob(ctx, "a", oci.SHA256(nil), 0, nil); err != nil {
			t.Errorf("empty blob: %v", err)
		}
		if err := c.DeleteBlob(ctx, "a/b", d); err != nil {
			t.Error(err)
		}
		wantCode(t, c.DeleteBlob(ctx, "a/b", digest), oci.CodeBlobUnknown)
	})
	t.Run("chunks", func(t *testing.T) {
		st, err := c.StartUpload(ctx, "c")
		if err != nil {
			t.Fatal(err)
		}
		if st, err = c.UploadStatus(ctx, "c", st.ID); err != nil || st.Size != 0 {
			t.Fatalf("got %+v, %v", st, err)
		}
		for off := 0; off < 2<<20; off += 1 << 20 {
			st, err = c.AppendUpload(ctx, "c", st.ID, int64(off), 1<<20, bytes.NewReader(content[off:off+1<<20]))
			if err != nil || st.Size != int64(off)+1<<20 {
				t.Fatalf("got %+v, %v", st, err)
			}
		}
		_, err = c.AppendUpload(ctx, "c", st.ID, 1, 1, strings.NewReader("x"))
		wantCode(t, err, oci.CodeRangeInvalid)
		desc, err := c.CommitUpload(ctx, "c", st.ID, 2<<20, 1<<20, bytes.NewReader(content[2<<20:]), d)
		if err != nil || desc.Size != int64(len(content)) {
			t.Fatalf("got %+v, %v", desc, err)
		}
		_, err = c.UploadStatus(ctx, "c", st.ID)
		wantCode(t, err, oci.CodeBlobUploadUnknown)
		if st, err = c.StartUpload(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		if err := c.CancelUpload(ctx, "c", st.ID); err != nil {
			t.Fatal(err)
		}
		wantCode(t, c.CancelUpload(ctx, "c", st.ID), oci.CodeBlobUploadUnknown)
	})
	t.Run("manifests", func(t *testing.T) { distributionManifests(t, c) })
}

func distributionManifests(t *testing.T, c *client.Client) {
	ctx := t.Context()
	_, err := c.GetManifest(ctx, "m", "nope")
	wantCode(t, err, oci.CodeManifestUnknown)
	_, _, err = c.Tags(ctx, "m", "", 10)
	wantCode(t, err, oci.CodeNameUnknown)
	img := pushImage(t, c, nil, "layer", "v2", "v1", "v3")
	for _, ref := range []string{"v1", "v3", string(img.Digest)} {
		desc, err := c.ResolveManifest(ctx, "m", ref)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(img, desc); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
	}
	for last, want := range map[string][]string{"": {"v1", "v2"}, "v2": {"v3"}, "v3": nil} {
		got, more, err := c.Tags(ctx, "m", last, 2)
		if err != nil || !slices.Equal(got, want) || more != (last == "") {
			t.Errorf("tags behind %q: got %q, more=%t, %v", last, got, more, err)
		}
	}
	names, _, err := c.Repositories(ctx, "", 100)
	if err != nil || !slices.Contains(names, "m") {
		t.Errorf("got repositories %q, %v", names, err)
	}
	sig := pushImage(t, c, &img, "sig")
	list, _, err := c.Referrers(ctx, "m", img.Digest, "application/vnd.oci.image.config.v1+json", "", 10)
	if err != nil || len(list) != 1 || list[0].Digest != sig.Digest {
		t.Errorf("got referrers %+v, %v", list, err)
	}
	if err := c.DeleteManifest(ctx, "m", sig.Digest); err != nil {
		t.Error(err)
	}
	_, err = c.GetManifest(ctx, "m", string(sig.Digest))
	wantCode(t, err, oci.CodeManifestUnknown)
	_, err = c.PutManifest(ctx, "empty", oci.PutManifest{Bytes: []byte(signature), Tags: []string{"x"}})
	var e *oci.Error
	if !errors.As(err, &e) || e.Status < 400 || e.Status >= http.StatusInternalServerError {
		t.Errorf("a manifest without its blobs: got %v", err)
	}
}

// pushImage pushes an image of one layer to the repository m.
func pushImage(t *testing.T, c *client.Client, subject *oci.Descriptor, layer string, tags ...string) oci.Descriptor {
	t.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Subject: subject}
	m.SchemaVersion = 2
	for _, blob := range []string{`{"layer":"` + layer + `"}`, layer} {
		d, err := c.PushBlob(t.Context(), "m", oci.SHA256([]byte(blob)), int64(len(blob)), strings.NewReader(blob))
		if err != nil {
			t.Fatal(err)
		}
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d.Digest, Size: int64(len(blob))})
	}
	m.Config, m.Layers = m.Layers[0], m.Layers[1:]
	m.Config.MediaType = ocispec.MediaTypeImageConfig
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.PutManifest(t.Context(), "m", oci.PutManifest{Bytes: b, MediaType: m.MediaType, Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	res.Descriptor.MediaType = m.MediaType
	return res.Descriptor
}
