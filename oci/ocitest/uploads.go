package ocitest

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/oci"
)

func sha512Of(b []byte) oci.Digest {
	sum := sha512.Sum512(b)
	return oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
}

func (s *suite) start(repo string) string {
	s.Helper()
	st, err := s.r.StartUpload(s.Context(), repo)
	s.must(err, "start an upload")
	if st.ID == "" || st.Size != 0 {
		s.Fatalf("start an upload: got %+v", st)
	}
	return st.ID
}

// append adds a chunk and checks the size of the upload afterwards.
func (s *suite) append(id string, off int64, chunk []byte, wantSize int) {
	s.Helper()
	st, err := s.r.AppendUpload(s.Context(), repo, id, off, int64(len(chunk)), bytes.NewReader(chunk))
	s.must(err, "append %d bytes at %d", len(chunk), off)
	if st.Size != int64(wantSize) {
		s.Fatalf("append %d bytes at %d: the upload stands at %d, want %d", len(chunk), off, st.Size, wantSize)
	}
	s.wantStatus(id, wantSize)
}

func (s *suite) wantStatus(id string, size int) {
	s.Helper()
	st, err := s.r.UploadStatus(s.Context(), repo, id)
	if err != nil || st.Size != int64(size) || st.ID == "" {
		s.Fatalf("status: got %+v, %v, want %d bytes", st, err, size)
	}
}

// commit ends an upload with a last chunk.
func (s *suite) commit(id string, off int64, last []byte, data []byte) {
	s.Helper()
	d := oci.SHA256(data)
	desc, err := s.r.CommitUpload(s.Context(), repo, id, off, int64(len(last)), bytes.NewReader(last), d)
	s.must(err, "commit with %d bytes at %d", len(last), off)
	if desc.Digest != d {
		s.Fatalf("commit: got %+v, want %s", desc, d)
	}
	s.wantBlob(repo, d, data)
	s.wantEnded(repo, id)
}

// wantEnded checks that an upload no longer exists.
func (s *suite) wantEnded(repo, id string) {
	s.Helper()
	ctx := s.Context()
	_, err := s.r.UploadStatus(ctx, repo, id)
	s.wantCode(err, "status of an ended upload", oci.CodeBlobUploadUnknown)
	_, err = s.r.AppendUpload(ctx, repo, id, oci.AtEnd, 1, bytes.NewReader([]byte("x")))
	s.wantCode(err, "append to an ended upload", oci.CodeBlobUploadUnknown)
	_, err = s.r.CommitUpload(ctx, repo, id, oci.AtEnd, 1, bytes.NewReader([]byte("x")), oci.SHA256([]byte("x")))
	s.wantCode(err, "commit an ended upload", oci.CodeBlobUploadUnknown)
	s.wantCode(s.r.CancelUpload(ctx, repo, id), "cancel an ended upload", oci.CodeBlobUploadUnknown)
}

func (s *suite) uploadChunks() {
	for _, chunks := range [][]int{
		{100}, {0, 100}, {8 << 10, 8 << 10}, {8 << 10, 8<<10 + 1}, {16 << 10, 1}, {1, 16 << 10}, {10, 10, 10},
		{16<<10 + 1, 1, 1}, {100_000, 100_000, 1}, {1, s.o.LargeSize, 5},
	} {
		for _, way := range []struct {
			name       string
			lastInPut  bool
			off, sized bool
		}{{"with ranges", true, true, true}, {"without ranges", false, false, true}, {"of unknown size", true, false, false}} {
			var data []byte
			id := s.start(repo)
			for i, n := range chunks {
				chunk := random(uint64(len(data)+i), n)
				off, size := oci.AtEnd, int64(-1)
				if way.off {
					off = int64(len(data))
				}
				if way.sized {
					size = int64(n)
				}
				data = append(data, chunk...)
				if way.lastInPut && i == len(chunks)-1 {
					_, err := s.r.CommitUpload(s.Context(), repo, id, off, size, bytes.NewReader(chunk), oci.SHA256(data))
					s.must(err, "commit chunks %v %s", chunks, way.name)
					s.wantBlob(repo, oci.SHA256(data), data)
					s.wantEnded(repo, id)
					continue
				}
				st, err := s.r.AppendUpload(s.Context(), repo, id, off, size, bytes.NewReader(chunk))
				s.must(err, "append chunk %d of %v %s", i, chunks, way.name)
				if st.Size != int64(len(data)) {
					s.Fatalf("append chunk %d of %v %s: stands at %d", i, chunks, way.name, st.Size)
				}
				s.wantStatus(id, len(data))
			}
			if !way.lastInPut {
				s.commit(id, oci.AtEnd, nil, data)
			}
		}
	}
}

func (s *suite) uploadOutOfOrder() {
	for _, size := range []int{1000, 20 << 10} {
		data := random(1, size)
		id := s.start(repo)
		for _, off := range []int64{1, int64(size), 1 << 40} {
			_, err := s.r.AppendUpload(s.Context(), repo, id, off, 3, bytes.NewReader(data[:3]))
			s.wantCode(err, fmt.Sprintf("append at %d to an empty upload", off), oci.CodeRangeInvalid)
		}
		s.append(id, 0, data[:size/2], size/2)
		for _, off := range []int64{0, 1, int64(size/2 - 1), int64(size/2 + 1)} {
			_, err := s.r.AppendUpload(s.Context(), repo, id, off, 3, bytes.NewReader(data[:3]))
			s.wantCode(err, fmt.Sprintf("append at %d to %d bytes", off, size/2), oci.CodeRangeInvalid)
			_, err = s.r.CommitUpload(s.Context(), repo, id, off, 3, bytes.NewReader(data[:3]), oci.SHA256(data))
			s.wantCode(err, fmt.Sprintf("commit at %d to %d bytes", off, size/2), oci.CodeRangeInvalid)
			s.wantStatus(id, size/2)
		}
		s.commit(id, int64(size/2), data[size/2:], data)
	}
}

// brokenReader returns some bytes and then an error.
type brokenReader struct {
	io.Reader
}

var errBroken = errors.New("the line went dead")

func (r *brokenReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err == io.EOF {
		err = errBroken
	}
	return n, err
}

// uploadBrokenOff checks that an upload can be continued after the bytes that arrived
// before an error.
func (s *suite) uploadBrokenOff() {
	for _, size := range []int{5000, 40 << 10, s.o.LargeSize} {
		for _, announced := range []bool{true, false} {
			seed, total := uint64(size), int64(-1)
			if announced {
				seed++
			}
			data := random(seed, size)
			id := s.start(repo)
			s.append(id, 0, data[:100], 100)
			if announced {
				total = int64(size - 100)
			}
			_, err := s.r.AppendUpload(s.Context(), repo, id, 100, total, &brokenReader{bytes.NewReader(data[100 : size/2])})
			if err == nil {
				s.Fatalf("append from a reader that fails: got no error")
			}
			st := s.settled(id, 100)
			if st < 100 || st > int64(size/2) {
				s.Fatalf("after a reader that failed at %d: the upload stands at %d", size/2, st)
			}
			_, err = s.r.CommitUpload(s.Context(), repo, id, st, int64(size)-st, &brokenReader{bytes.NewReader(data[st : st+50])}, oci.SHA256(data))
			if err == nil {
				s.Fatalf("commit from a reader that fails: got no error")
			}
			s.wantNoBlob(repo, oci.SHA256(data))
			st = s.settled(id, st)
			s.commit(id, st, data[st:], data)
		}
	}
}

// settled asks for the status until no request writes any more, and returns the size.
// Over a network the other side may still be busy with a request that was given up here,
// or about to begin with it. settled waits a moment for the size to exceed before,
// because a late chunk of unknown length would be appended wherever the upload stands.
func (s *suite) settled(id string, before int64) int64 {
	s.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	for deadline := start.Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		st, err := s.r.UploadStatus(s.Context(), repo, id)
		if err == nil {
			if s.o.Remote && st.Size <= before && time.Since(start) < 500*time.Millisecond {
				continue
			}
			return st.Size
		}
		if !s.o.Remote {
			s.Fatalf("status of an upload that broke off: %v", err)
		}
		if !oci.HasCode(err, oci.CodeBlobUploadInvalid) {
			s.Fatalf("status of an upload that broke off: %v", err)
		}
	}
	s.Fatal("the upload stays busy")
	return 0
}

// uploadAnnouncedWrongly sends a body whose length differs from the announced one.
func (s *suite) uploadAnnouncedWrongly() {
	if s.o.Remote {
		s.Skip("an HTTP client cannot send a body of another length than it announces")
	}
	for _, size := range []int{10, 1000, 20 << 10, 300 << 10} {
		data := random(uint64(size), size)
		for _, announced := range []int{size - 1, size + 1, size / 2, 2 * size} {
			id := s.start(repo)
			_, err := s.r.AppendUpload(s.Context(), repo, id, 0, int64(announced), bytes.NewReader(data))
			s.wantCode(err, fmt.Sprintf("append %d bytes announced as %d", size, announced), oci.CodeSizeInvalid)
			st, err := s.r.UploadStatus(s.Context(), repo, id)
			if err != nil || st.Size > int64(min(size, announced)) {
				s.Fatalf("after %d bytes announced as %d: got %+v, %v", size, announced, st, err)
			}
			s.commit(id, st.Size, data[st.Size:], data)
			s.must(s.r.DeleteBlob(s.Context(), repo, oci.SHA256(data)), "delete")
		}
	}
}

func (s *suite) uploadWrongDigest() {
	for _, size := range []int{10, 40 << 10} {
		data := random(uint64(size), size)
		for _, d := range []oci.Digest{oci.SHA256(append([]byte("x"), data...)), sha512Of(append([]byte("x"), data...))} {
			id := s.start(repo)
			s.append(id, 0, data[:5], 5)
			_, err := s.r.CommitUpload(s.Context(), repo, id, 5, int64(size-5), bytes.NewReader(data[5:]), d)
			s.wantCode(err, "commit with the wrong digest", oci.CodeDigestInvalid)
			s.wantNoBlob(repo, d)
			s.wantNoBlob(repo, oci.SHA256(data))
			s.wantEnded(repo, id)
		}
	}
}

func (s *suite) uploadEnded() {
	data := random(1, 20<<10)
	id := s.start(repo)
	s.append(id, 0, data, len(data))
	_, err := s.r.UploadStatus(s.Context(), "other", id)
	s.wantCode(err, "status in another repository", oci.CodeBlobUploadUnknown)
	s.wantCode(s.r.CancelUpload(s.Context(), "other", id), "cancel in another repository", oci.CodeBlobUploadUnknown)
	_, err = s.r.CommitUpload(s.Context(), "other", id, oci.AtEnd, 0, nil, oci.SHA256(data))
	s.wantCode(err, "commit in another repository", oci.CodeBlobUploadUnknown)
	s.must(s.r.CancelUpload(s.Context(), repo, id), "cancel")
	s.wantEnded(repo, id)
	s.wantNoBlob(repo, oci.SHA256(data))

	for _, id := range []string{"0", "00000000000000000000000000000000", "x", "_staging"} {
		s.wantEnded(repo, id)
	}
}

func (s *suite) uploadEmpty() {
	id := s.start(repo)
	s.append(id, 0, nil, 0)
	s.commit(id, oci.AtEnd, nil, []byte{})
	id = s.start(repo)
	_, err := s.r.CommitUpload(s.Context(), repo, id, oci.AtEnd, 0, nil, sha512Of(nil))
	s.must(err, "commit the empty blob by sha512")
	s.wantBlob(repo, sha512Of(nil), []byte{})
	id = s.start(repo)
	_, err = s.r.CommitUpload(s.Context(), repo, id, oci.AtEnd, 0, nil, oci.SHA256([]byte("x")))
	s.wantCode(err, "commit nothing as something", oci.CodeDigestInvalid)
}

func (s *suite) uploadSHA512() {
	for _, size := range []int{100, 40 << 10, s.o.LargeSize} {
		data := random(uint64(size), size)
		d := sha512Of(data)
		id := s.start(repo)
		s.append(id, 0, data[:size/3], size/3)
		s.append(id, int64(size/3), data[size/3:size/2], size/2)
		_, err := s.r.CommitUpload(s.Context(), repo, id, int64(size/2), int64(size-size/2), bytes.NewReader(data[size/2:]), d)
		s.must(err, "commit by sha512")
		s.wantBlob(repo, d, data)
		s.wantEnded(repo, id)
	}
	if s.o.FixedDigest {
		return
	}
	// The client changes the algorithm of the digest.
	data := random(7, 40<<10)
	id := s.start(repo)
	_, err := s.r.CommitUpload(s.Context(), repo, id, 0, int64(len(data)), &brokenReader{bytes.NewReader(data[:30<<10])}, sha512Of(data))
	if err == nil {
		s.Fatal("commit from a reader that fails: got no error")
	}
	st := s.settled(id, 0)
	s.commit(id, st, data[st:], data)
}
