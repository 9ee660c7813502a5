package web

import (
	"net/http"

	"example.org/slipway/registry/auth"
	"example.org/slipway/web/images"
)

// imageAt returns the image at the path of the request if the user may see it. If not, it
// has answered the request, or returns the error to answer with.
func (q *request) imageAt() (at images.Ref, ok bool, err error) {
	if at, ok = images.ParseRef(q.rest); !ok {
		return at, false, noImage()
	}
	ok, err = q.mayBrowse(at.Repo)
	return at, ok, err
}

// viewer returns what pages about images of a repository know of the user.
func (q *request) viewer(repo string) images.Viewer {
	admin := q.may("", auth.Admin)
	return images.Viewer{Admin: admin, Everywhere: admin || q.h.access == nil, MayDelete: q.may(repo, auth.Delete), Host: q.host(), Plain: !q.encrypted()}
}

// image shows an image, or whatever else a manifest describes.
func (q *request) image() error {
	at, ok, err := q.imageAt()
	if !ok {
		return err
	}
	d, err := q.h.images.Image(q.r, at, q.viewer(at.Repo))
	return q.showImage("image", q.rest, d, err)
}

// tree shows the files of an image.
func (q *request) tree() error {
	at, ok, err := q.imageAt()
	if !ok {
		return err
	}
	d, err := q.h.images.Tree(q.r, at, q.viewer(at.Repo))
	return q.showImage("tree", "Files of "+at.String(), d, err)
}

// diff compares the files of two images of a repository.
func (q *request) diff() error {
	repo := q.rest
	if ok, err := q.mayBrowse(repo); !ok {
		return err
	}
	d, err := q.h.images.Diff(q.r, repo, q.viewer(repo))
	return q.showImage("diff", "Differences in "+repo, d, err)
}

// showImage answers with a page about images.
func (q *request) showImage(name, title string, data any, err error) error {
	if err != nil {
		return orNoImage(err)
	}
	q.show(http.StatusOK, name, title, data)
	return nil
}
