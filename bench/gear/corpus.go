package gear

import (
	"slices"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/wire"
)

// image is one image of the set.
type image = corpus.Image

// fewer returns at most limit images. It takes two of each series first, so that there is something
// to share. A limit of 0 means all images.
func fewer(all []*image, limit int) []*image {
	if limit == 0 || len(all) <= limit {
		return all
	}
	chosen := map[*image]bool{}
	for most := 2; len(chosen) < limit; most++ {
		of := map[string]int{}
		for _, im := range all {
			if of[im.Series]++; of[im.Series] <= most && len(chosen) < limit {
				chosen[im] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(im *image) bool { return !chosen[im] })
}

// source is a layer and a layout that has it.
type source struct {
	wire.Descriptor
	im *image
}

func (s source) path() string { return s.im.Blob(s.Digest) }

// distinct returns the different layers of images, in order of first appearance.
func distinct(images []*image) []source {
	seen := map[string]bool{}
	var out []source
	for _, im := range images {
		for _, l := range im.Layers {
			if !seen[l.Digest] {
				seen[l.Digest] = true
				out = append(out, source{l, im})
			}
		}
	}
	return out
}
