package images

import (
	"slices"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/web/format"
)

// image is an image whose files are shown. If it comes from an index, it is the image for
// one platform.
type image struct {
	manifest
	Digest oci.Digest
	// Platform is the platform that was chosen from the index. Platforms are the
	// platforms to choose from, and MorePlatforms is how many are not listed.
	Platform      string
	Platforms     []string
	MorePlatforms int
}

const (
	// usualPlatform is the platform that is shown of an index by default.
	usualPlatform = "linux/amd64"
	// maxChoices is how many platforms of an index are offered as links.
	maxChoices = 100
)

// imageOf returns the image that a reference names. For an index, it is the image for the
// platform. It returns *noFiles if there are no files to show.
func (q *request) imageOf(repo, ref, platform string) (*image, error) {
	if q.opts.Files == nil {
		return nil, &noFiles{Title: "No files", Text: "This server does not show the files of images."}
	}
	m, err := Ref{repo, ref}.Read(q.ctx(), q.opts.Browse)
	if err != nil {
		return nil, err
	}
	i := &image{manifest: readManifest(m.Content), Digest: m.Digest}
	if len(i.Manifests) > 0 {
		child, err := i.choose(platform)
		if err != nil {
			return nil, err
		}
		m, err := q.opts.Browse.Manifest(q.ctx(), repo, child)
		if Absent(err) {
			return nil, &noFiles{Title: "Not all of it is here", Text: "The image for " + format.Visible(i.Platform) + " is not here. In a mirror it comes with the first pull."}
		}
		if err != nil {
			return nil, err
		}
		i.manifest, i.Digest = readManifest(m.Content), m.Digest
	}
	switch {
	case len(i.Manifests) > 0:
		return nil, &noFiles{Title: "Not an image", Text: "For " + format.Visible(i.Platform) + " this index names another index, which this page does not follow."}
	case i.Layers == nil:
		return nil, &noFiles{Title: "Not an image", Text: "The manifest is of a form that this page does not know."}
	}
	return i, nil
}

// choose returns the manifest of an index for a platform. By default it returns the
// manifest for linux/amd64 or, if there is none, the first manifest. If several manifests
// are for the same platform, it returns the first of them, as runtimes do.
func (i *image) choose(platform string) (oci.Digest, error) {
	var d oci.Digest
	seen := map[string]bool{}
	for k := range i.Manifests {
		p := entryPlatform(&i.Manifests[k])
		if p == "" || seen[p] {
			continue
		}
		seen[p] = true
		if p == platform || platform == "" && (d == "" || p == usualPlatform) {
			d, i.Platform = i.Manifests[k].Digest, p
		}
		if len(i.Platforms) < maxChoices {
			i.Platforms = append(i.Platforms, p)
		}
	}
	i.MorePlatforms = len(seen) - len(i.Platforms)
	switch {
	case len(seen) == 0:
		return "", &noFiles{Title: "Not an image", Text: "This index names no image of a platform."}
	case i.Platform == "":
		return "", &noFiles{Title: "No such platform", Text: "This image is for " + format.Visible(strings.Join(i.Platforms, ", ")) + "; there is none for " + format.Visible(platform) + "."}
	}
	if !slices.Contains(i.Platforms, i.Platform) {
		i.Platforms = append(i.Platforms, i.Platform)
		i.MorePlatforms--
	}
	return d, nil
}

// gearLayers returns the layers, the lowest first. It returns *noFiles if there are no
// files to show.
func (i *image) gearLayers() ([]oci.Digest, error) {
	if len(i.Layers) == 0 {
		return nil, &noFiles{Title: "No layers", Text: "This image has no layers, so it has no files."}
	}
	if len(i.Layers) > maxTreeLayers {
		return nil, &noFiles{Title: "Too many layers", Text: "This image has more layers than this page shows, and than containers can be made of."}
	}
	out := make([]oci.Digest, len(i.Layers))
	for k, l := range i.Layers {
		if !gear.IsLayer(l.MediaType) {
			return nil, noLayer(k+1, l.MediaType)
		}
		out[k] = l.Digest
	}
	return out, nil
}

// noLayer says why an entry among a manifest's layers has no files to show.
func noLayer(number int, mediaType string) error {
	layer, of := "Layer "+format.Count(int64(number))+" of this image", " is of the type "+format.Visible(mediaType)
	switch {
	case strings.Contains(mediaType, ".nondistributable.") || strings.Contains(mediaType, ".foreign."):
		return &noFiles{Title: "Not all of it is here", Text: layer + of + ": clients fetch it from whoever made it, and registries do not keep it, so its files are not known."}
	case strings.HasSuffix(mediaType, "+encrypted"):
		return &noFiles{Title: "Encrypted", Text: layer + of + ": only who has the key can tell what is in it."}
	}
	return &noFiles{Title: "Not a file tree", Text: "What this manifest names are not layers of files but of the type " + format.Visible(mediaType) + ", as those of charts, signatures and other artifacts are."}
}
