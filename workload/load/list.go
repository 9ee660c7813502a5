package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/workload/load/imageset"
)

// listPage is the number of names in one page of a list.
const listPage = 1000

// listImages finds the images of a registry whose names contain a match of one of the
// patterns. It reads their manifests to find out what a client fetches. It uses the first
// tag of each repository, as Ociregistry's driver does, or every tag if all is true.
func listImages(ctx context.Context, e *endpoint, patterns []string, all bool, progress func(done, total int64)) ([]*imageset.Image, error) {
	exprs := make([]*regexp.Regexp, len(patterns))
	for i, p := range patterns {
		var err error
		if exprs[i], err = regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", p, err)
		}
	}
	var repos []string
	for last, more := "", true; more; last = repos[len(repos)-1] {
		page, m, err := e.patient.Repositories(ctx, last, listPage)
		if err != nil {
			return nil, fmt.Errorf("list the repositories of %s: %w", e.Name, err)
		}
		if repos = append(repos, page...); len(page) == 0 {
			break
		}
		more = m
	}
	var mu sync.Mutex
	found := make([][]*imageset.Image, len(repos)) // in the order of repos, whichever is done first
	var done int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, repo := range repos {
		g.Go(func() error {
			images, err := listRepo(ctx, e, repo, exprs, all)
			mu.Lock()
			defer mu.Unlock()
			found[i] = images
			done++
			progress(done, int64(len(repos)))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var out []*imageset.Image
	for _, images := range found {
		out = append(out, images...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no images that the patterns select", e.Name)
	}
	if len(out) > imageset.Max {
		return nil, fmt.Errorf("%s has %d images that the patterns select, more than %d", e.Name, len(out), imageset.Max)
	}
	return out, nil
}

// listRepo finds the images of a repository. A repository without tags has none.
func listRepo(ctx context.Context, e *endpoint, repo string, exprs []*regexp.Regexp, all bool) (out []*imageset.Image, err error) {
	for last, more := "", true; more; {
		tags, m, err := e.patient.Tags(ctx, repo, last, listPage)
		if oci.HasCode(err, oci.CodeNameUnknown) || err == nil && len(tags) == 0 {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the tags of %s: %w", repo, err)
		}
		for _, tag := range tags {
			name := repo + ":" + tag
			wanted := len(exprs) == 0
			for _, x := range exprs {
				wanted = wanted || x.MatchString(name)
			}
			if !wanted {
				continue
			}
			img, err := survey(ctx, e.patient, repo, tag)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if out = append(out, img); !all {
				return out, nil
			}
		}
		last, more = tags[len(tags)-1], m
	}
	return out, nil
}

// survey finds out what a client fetches when it pulls an image.
func survey(ctx context.Context, r oci.Reader, repo, tag string) (*imageset.Image, error) {
	m := &imageset.Image{Repo: repo, Tag: tag}
	for ref, depth := tag, 0; depth < 4; depth++ {
		got, err := r.GetManifest(ctx, repo, ref)
		if err != nil {
			return nil, err
		}
		m.Manifests = append(m.Manifests, imageset.Part{Digest: got.Digest, Size: got.Size})
		next, blobs, err := contents(got.Bytes)
		if err != nil {
			return nil, err
		}
		if next == "" {
			m.Blobs = blobs
			return m, nil
		}
		ref = string(next)
	}
	return nil, errors.New("it is an index of indexes of indexes")
}

// contents parses a manifest that others wrote. If it is an index, contents returns the
// digest of the manifest for a client of linux/amd64. Otherwise it returns the blobs of
// the image.
func contents(b []byte) (next oci.Digest, blobs []imageset.Part, err error) {
	var doc struct {
		Manifests []oci.Descriptor `json:"manifests"`
		Config    *oci.Descriptor  `json:"config"`
		Layers    []oci.Descriptor `json:"layers"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return "", nil, errors.New("the manifest is not JSON of a known form")
	}
	if len(doc.Manifests) > 0 {
		want := imageset.Platform()
		d := doc.Manifests[0]
		for _, c := range doc.Manifests {
			if p := c.Platform; p != nil && p.OS == want.OS && p.Architecture == want.Architecture {
				d = c
				break
			}
		}
		return d.Digest, nil, oci.CheckDigest(d.Digest)
	}
	if doc.Config == nil {
		return "", nil, errors.New("the manifest is neither an index nor one of an image")
	}
	seen := map[oci.Digest]bool{}
	for i, d := range append([]oci.Descriptor{*doc.Config}, doc.Layers...) {
		if err := oci.CheckDigest(d.Digest); err != nil {
			return "", nil, err
		}
		if d.Size < 0 {
			return "", nil, errors.New("a size in the manifest is negative")
		}
		if i > 0 && len(d.URLs) > 0 || seen[d.Digest] { // the blob is elsewhere, or the client has it already
			continue
		}
		seen[d.Digest] = true
		blobs = append(blobs, imageset.Part{Digest: d.Digest, Size: d.Size})
	}
	return "", blobs, nil
}
