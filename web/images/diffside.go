package images

import (
	"errors"
	"net/url"
	"slices"

	"example.org/slipway/registry/catalog"
)

// side is one of the two images that are compared.
type side struct {
	ref  Ref
	img  *image
	tree *fileTree
}

// says adds to an error the image to which it belongs.
func (s *side) says(err error) error {
	var p *noFiles
	if errors.As(err, &p) {
		return &noFiles{p.Title, s.ref.String() + ": " + p.Text, p.Command}
	}
	return err
}

// address returns the address of the image's files.
func (s *side) address(q *request) string {
	to := q.opts.Base + "tree/" + s.ref.String()
	if s.img.Platform != "" {
		to += "?" + url.Values{"platform": {s.img.Platform}}.Encode()
	}
	return to
}

// readImages reads both images for a platform.
func (q *request) readImages(d *diffData, platform string, sides ...*side) (err error) {
	for _, s := range sides {
		if s.img, err = q.imageOf(s.ref.Repo, s.ref.Ref, platform); err != nil {
			return s.says(err)
		}
		for _, p := range s.img.Platforms {
			if !slices.Contains(d.Platforms, p) {
				d.Platforms = append(d.Platforms, p)
			}
		}
	}
	return nil
}

// sides reads both images and their files. If no platform was requested, and one image
// lacks the platform that is shown of the other image, it uses a platform that both have.
// It returns *noFiles if there are no files to show.
func (q *request) sides(d *diffData) (from, to *side, err error) {
	from, to = &side{ref: Ref{d.Repo, d.From}}, &side{ref: Ref{d.Repo, d.To}}
	for _, s := range []*side{from, to} {
		if _, ok := ParseRef(s.ref.String()); !ok {
			return nil, nil, catalog.ErrNotFound
		}
	}
	if err := q.readImages(d, d.Platform, from, to); err != nil {
		return nil, nil, err
	}
	if d.Platform == "" && from.img.Platform != to.img.Platform {
		for _, p := range from.img.Platforms {
			if slices.Contains(to.img.Platforms, p) {
				err = q.readImages(d, p, from, to)
				break
			}
		}
	}
	for _, s := range []*side{from, to} {
		if err == nil {
			s.tree, err = q.treeOf(q.ctx(), s.ref.Repo, s.img)
			err = s.says(err)
		}
	}
	return from, to, err
}
