package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/workload/load/imageset"
)

// Prune is a way to remove what was pulled from a registry that mirrors another one, so
// that the next pull goes through to the other registry again.
type Prune string

// These are the ways of pruning.
const (
	// NoPrune removes nothing: pulls are of what the registry has.
	NoPrune Prune = ""
	// PruneDelete deletes the manifests through the registry's API. Slipway then forgets
	// its copy. Mirrors of Distribution refuse it.
	PruneDelete Prune = "delete"
	// PruneOciregistry asks Ociregistry to prune by the pattern.
	PruneOciregistry Prune = "ociregistry"
	// PruneSlipway prunes all images of a pass at once with Options.PruneMirror.
	PruneSlipway Prune = "slipway"
)

// ParsePrune parses the name of a way of pruning.
func ParsePrune(s string) (Prune, error) {
	switch p := Prune(s); p {
	case NoPrune, PruneDelete, PruneOciregistry, PruneSlipway:
		return p, nil
	case "none":
		return NoPrune, nil
	}
	return "", fmt.Errorf("unknown way of pruning %q: use delete, slipway, ociregistry or none", s)
}

// prune removes the images that a pattern selects from the target's cache.
func (r *run) prune(ctx context.Context, pattern string, images []*imageset.Image) error {
	switch r.o.Prune {
	case PruneDelete:
		return r.target.deleteImages(ctx, images)
	case PruneOciregistry:
		return r.target.pruneOciregistry(ctx, pattern)
	case PruneSlipway:
		glob, err := globOf(r.target.Prefix, images)
		if err != nil {
			return err
		}
		return r.o.PruneMirror(ctx, glob)
	}
	return nil
}

// globOf returns a pattern, by the rules of path.Match, that selects the repositories of
// images. The pattern is the beginning that all names share, up to a slash, then "*",
// then the ending that all names share.
func globOf(prefix string, images []*imageset.Image) (string, error) {
	first := prefix + images[0].Repo
	dir := first[:strings.LastIndexByte(first, '/')+1]
	end, several := first[len(dir):], false
	for _, m := range images[1:] {
		base, ok := strings.CutPrefix(prefix+m.Repo, dir)
		if !ok || strings.Contains(base, "/") {
			return "", fmt.Errorf("%s and %s are not named so that one pattern of repositories selects them, as --prune slipway needs it", images[0].Repo, m.Repo)
		}
		several = several || prefix+m.Repo != first
		for !strings.HasSuffix(base, end) {
			end = end[1:]
		}
	}
	if !several {
		return first, nil
	}
	return dir + "*" + end, nil
}

// checkGlobs checks that pruning the images of one puller does not prune the images of
// another.
func (r *run) checkGlobs() error {
	for i, set := range r.sets {
		glob, err := globOf(r.target.Prefix, set)
		if err != nil {
			return err
		}
		for j, other := range r.sets {
			for _, m := range other {
				if hit, err := path.Match(glob, r.target.Prefix+m.Repo); i != j && (hit || err != nil) {
					return fmt.Errorf("%s, which selects what is pruned after a pass, selects %s of another puller too", glob, m.Repo)
				}
			}
		}
	}
	return nil
}

// deleteImages deletes manifests. It deletes the manifest that a tag names first, so that
// nobody can find an incomplete image meanwhile.
func (e *endpoint) deleteImages(ctx context.Context, images []*imageset.Image) error {
	for _, m := range images {
		for _, p := range m.Manifests {
			err := e.hasty.DeleteManifest(ctx, e.Prefix+m.Repo, p.Digest)
			var answer *oci.Error
			gone := errors.As(err, &answer) && answer.HTTPStatus() == http.StatusNotFound // whatever its code is
			if err != nil && !gone {
				return fmt.Errorf("prune %s: %w", m.Name(), err)
			}
		}
	}
	return nil
}

// pruneOciregistry sends DELETE /cmd/prune?type=pattern&expr=PATTERN. Without count,
// Ociregistry would prune 50 images. Without dryRun=false, some versions would only
// report what they would prune.
func (e *endpoint) pruneOciregistry(ctx context.Context, pattern string) error {
	u := *e.url
	u.Path += "/cmd/prune"
	u.RawQuery = url.Values{"type": {"pattern"}, "expr": {pattern}, "dryRun": {"false"}, "count": {"-1"}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, u.String(), nil)
	if err != nil {
		return err
	}
	resp, err := e.transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("prune %s: %w", pattern, err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxListBytes))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("prune %s: %w", pattern, err)
	}
	if resp.StatusCode/100 != 2 {
		return &Fault{fmt.Sprintf("status %d", resp.StatusCode), fmt.Errorf("prune %s", pattern)}
	}
	return nil
}

// rotated returns the images in an order that begins elsewhere, so that pullers of the
// same images begin with different ones.
func rotated(images []*imageset.Image, by int) []*imageset.Image {
	if by == 0 || len(images) < 2 {
		return images
	}
	by %= len(images)
	return slices.Concat(images[by:], images[:by])
}
