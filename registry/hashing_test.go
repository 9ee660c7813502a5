package registry_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"example.org/slipway/oci"
)

// TestHashingBeside checks that pieces of all sizes, in one body or in several, give the digest of
// what was sent, even if a body breaks off in the middle of a piece that is being hashed.
func TestHashingBeside(t *testing.T) {
	b := newDiskBed(t)
	data := make([]byte, 3<<20+12345)
	rand.NewChaCha8([32]byte{1}).Read(data)
	want := oci.SHA256(data)
	for name, body := range map[string]func() io.Reader{
		"whole":          func() io.Reader { return bytes.NewReader(data) },
		"in halves":      func() io.Reader { return iotest.HalfReader(bytes.NewReader(data)) },
		"end with bytes": func() io.Reader { return iotest.DataErrReader(bytes.NewReader(data)) },
	} {
		for _, size := range []int64{int64(len(data)), -1} {
			repo := "hashing/" + map[bool]string{true: "known", false: "unknown"}[size >= 0]
			if _, err := b.PushBlob(t.Context(), repo, want, size, body()); err != nil {
				t.Errorf("%s, size %d: %v", name, size, err)
			}
			wrong := oci.SHA256([]byte("something else"))
			if _, err := b.PushBlob(t.Context(), repo, wrong, size, body()); !oci.HasCode(err, oci.CodeDigestInvalid) {
				t.Errorf("%s, size %d, wrong digest: got %v", name, size, err)
			}
		}
	}
	st, err := b.StartUpload(t.Context(), "hashing/parts")
	if err != nil {
		t.Fatal(err)
	}
	for i, cut := range []int{1 << 20, 2<<20 + 77} {
		broken := io.MultiReader(bytes.NewReader(data[st.Size:cut]), iotest.ErrReader(errors.New("gone")))
		if _, err := b.AppendUpload(t.Context(), "hashing/parts", st.ID, oci.AtEnd, -1, broken); err == nil {
			t.Fatalf("part %d: a body that broke off was taken for whole", i)
		}
		if st, err = b.UploadStatus(t.Context(), "hashing/parts", st.ID); err != nil || st.Size != int64(cut) {
			t.Fatalf("part %d: %d bytes are kept, %v; want %d", i, st.Size, err, cut)
		}
	}
	rest := data[st.Size:]
	if _, err := b.CommitUpload(t.Context(), "hashing/parts", st.ID, oci.AtEnd, int64(len(rest)), bytes.NewReader(rest), want); err != nil {
		t.Error(err)
	}
}
