package ocitest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"

	"example.org/slipway/oci"
)

// race calls the function do with 0 to Racers-1, all at once.
func (s *suite) race(do func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range s.o.Racers {
		wg.Go(func() {
			<-start
			do(i)
		})
	}
	close(start)
	wg.Wait()
}

// raceBlob pushes the same bytes many times at once, to one and to several repositories.
func (s *suite) raceBlob() {
	for round, size := range []int{500, 16<<10 + 1, s.o.LargeSize} {
		data := random(uint64(round), size)
		d := oci.SHA256(data)
		s.race(func(i int) {
			name := fmt.Sprintf("race/r%d", i/2)
			if _, err := s.r.PushBlob(s.Context(), name, d, int64(size), bytes.NewReader(data)); err != nil {
				s.Errorf("push to %s: %v", name, err)
				return
			}
			c, err := s.r.GetBlob(s.Context(), name, d)
			if err != nil {
				s.Errorf("get from %s what was just pushed: %v", name, err)
				return
			}
			defer c.Close()
			if got, err := readContent(c); err != nil || !bytes.Equal(got, data) {
				s.Errorf("%s: got %d bytes, %v", name, len(got), err)
			}
		})
	}
}

// raceUpload has several requests write to one upload. Only one may write at a time, and
// the upload must hold exactly what was acknowledged.
func (s *suite) raceUpload() {
	for _, size := range []int{1000, 100_000} {
		id := s.start(repo)
		var winner atomic.Int64
		winner.Store(-1)
		s.race(func(i int) {
			data := random(uint64(i), size)
			_, err := s.r.AppendUpload(s.Context(), repo, id, 0, int64(size), bytes.NewReader(data))
			switch {
			case err == nil:
				if !winner.CompareAndSwap(-1, int64(i)) {
					s.Error("two requests wrote at byte 0")
				}
			default:
				s.wantCode(err, "append as the second", oci.CodeRangeInvalid, oci.CodeBlobUploadInvalid)
			}
		})
		if winner.Load() < 0 {
			s.Fatal("nobody could write")
		}
		s.wantStatus(id, size)
		data := random(uint64(winner.Load()), size)
		var commits atomic.Int64
		s.race(func(int) {
			_, err := s.r.CommitUpload(s.Context(), repo, id, oci.AtEnd, 0, nil, oci.SHA256(data))
			if err == nil {
				commits.Add(1)
				return
			}
			s.wantCode(err, "commit as the second", oci.CodeBlobUploadUnknown, oci.CodeBlobUploadInvalid)
		})
		if commits.Load() != 1 {
			s.Errorf("%d commits of one upload succeeded", commits.Load())
		}
		s.wantBlob(repo, oci.SHA256(data), data)
		s.wantEnded(repo, id)
	}
}

// raceTag moves a tag all the time and deletes the manifests it leaves. The tag must
// always resolve, and all tags of one push must move together.
func (s *suite) raceTag() {
	docs := make([]document, s.o.Racers)
	for i := range docs {
		docs[i] = s.image(repo, i)
	}
	s.put(repo, docs[0], "moving", "along")
	var writers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.r.ResolveManifest(s.Context(), repo, "moving"); err != nil {
					s.Errorf("resolve the tag: %v", err)
				}
				m, err := s.r.GetManifest(s.Context(), repo, "moving")
				if err != nil {
					s.Errorf("get the tag: %v", err)
				} else if oci.SHA256(m.Bytes) != m.Digest {
					s.Errorf("the manifest has digest %s, it says %s", oci.SHA256(m.Bytes), m.Digest)
				}
			}
		})
	}
	var old oci.Digest
	for n := range 50 {
		d := s.put(repo, docs[n%len(docs)], "moving", "along").Digest
		if old != "" && old != d {
			if err := s.r.DeleteManifest(s.Context(), repo, old); err != nil {
				s.Errorf("delete what the tag has left: %v", err)
			}
		}
		old = d
	}
	close(stop)
	writers.Wait()
	s.race(func(i int) {
		b := s.marshal(docs[i])
		if _, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: docs[i].MediaType, Tags: []string{"moving", "along"}}); err != nil {
			s.Errorf("put: %v", err)
		}
	})
	a, err := s.r.ResolveManifest(s.Context(), repo, "moving")
	s.must(err, "resolve")
	b, err := s.r.ResolveManifest(s.Context(), repo, "along")
	s.must(err, "resolve")
	if a.Digest != b.Digest {
		s.Errorf("tags of one push lead to %s and %s", a.Digest, b.Digest)
	}
}

// racePushDelete pushes and deletes one image several times at once. Whatever exists at
// the end must be complete.
func (s *suite) racePushDelete() {
	doc := s.image(repo, 1)
	b := s.marshal(doc)
	d := oci.SHA256(b)
	s.race(func(i int) {
		for range 5 {
			if i%2 == 0 {
				if _, err := s.r.PutManifest(s.Context(), repo, oci.PutManifest{Bytes: b, MediaType: doc.MediaType, Tags: []string{"x"}}); err != nil {
					s.Errorf("put: %v", err)
				}
				continue
			}
			if err := s.r.DeleteManifest(s.Context(), repo, d); err != nil {
				s.wantCode(err, "delete", oci.CodeManifestUnknown)
			}
		}
	})
	_, byTag := s.r.GetManifest(s.Context(), repo, "x")
	_, byDigest := s.r.GetManifest(s.Context(), repo, string(d))
	if (byTag == nil) != (byDigest == nil) {
		s.Errorf("by tag: %v, by digest: %v", byTag, byDigest)
	}
	m := s.put(repo, doc, "x")
	s.wantManifest(repo, "x", m, b)
	s.wantBlob(repo, doc.Layers[0].Digest, random(1000, 3000))
}
