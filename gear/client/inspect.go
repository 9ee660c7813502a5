package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// Stats describes what a layer or image consists of.
type Stats struct {
	Dirs      int `json:"directories"`
	Files     int `json:"files"`
	Symlinks  int `json:"symlinks"`
	HardLinks int `json:"hard_links"`
	// Special is the number of devices, fifos and sockets.
	Special int `json:"special"`
	// Whiteouts and Opaque count the entries that hide something in the layers below.
	Whiteouts int `json:"whiteouts"`
	Opaque    int `json:"opaque"`
	// Bytes is the size of all regular files. Each path counts; hard links do not.
	// Distinct counts each content once.
	Bytes         int64 `json:"bytes"`
	Distinct      int   `json:"distinct_files"`
	DistinctBytes int64 `json:"distinct_bytes"`
}

func statsOf(x *gear.Index) Stats {
	var s Stats
	for i := range x.Entries {
		e := &x.Entries[i]
		switch e.Type {
		case rootfs.Dir:
			s.Dirs++
		case rootfs.File:
			s.Files++
			s.Bytes += e.Size
		case rootfs.Symlink:
			s.Symlinks++
		case rootfs.HardLink:
			s.HardLinks++
		case rootfs.Whiteout:
			s.Whiteouts++
		case rootfs.Opaque:
			s.Opaque++
		default:
			s.Special++
		}
	}
	s.Distinct = len(x.Files)
	for i := range x.Files {
		s.DistinctBytes += x.Files[i].Size
	}
	return s
}

// Report is what Inspect found out about an image.
type Report struct {
	Image    string     `json:"image"`
	Digest   oci.Digest `json:"digest"`
	Platform string     `json:"platform"`
	// Gear says whether it is a Gear image. Original is the image that it was made of.
	Gear     bool       `json:"gear"`
	Original oci.Digest `json:"original,omitempty"`
	// Layers has the layers, the lowest first.
	Layers []LayerReport `json:"layers"`
	// Whole describes the image as a container sees it. IndexBytes is how much a node
	// fetches to mount it.
	Whole      Stats `json:"whole"`
	IndexBytes int64 `json:"index_bytes"`
	// Duplicates has the contents that occur at several paths. Largest has the largest
	// files.
	Duplicates []Duplicate `json:"duplicates"`
	Largest    []FileSize  `json:"largest"`
	// LeftOut is what the layers contain and a mounted tree lacks.
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// Shared is what the image shares with each of the other images. SharedAny is what it
	// shares with any of them.
	Shared    []Shared `json:"shared"`
	SharedAny *Shared  `json:"shared_any,omitempty"`
	// Skipped names the images that could not be compared, and why.
	Skipped []string `json:"skipped,omitempty"`

	index *gear.Index
}

// Index returns the image's tree.
func (r *Report) Index() *gear.Index { return r.index }

// LayerReport is a layer of a Report.
type LayerReport struct {
	Digest oci.Digest `json:"digest"`
	// Stored is the size of the layer's blob in bytes.
	Stored int64 `json:"stored"`
	Stats
}

// FileSize is a file and its size in bytes.
type FileSize struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// LeftOut is a property of a file that a mounted tree cannot have, and why.
type LeftOut struct {
	Path string `json:"path"`
	What string `json:"what"`
}

// Duplicate is a content at several paths.
type Duplicate struct {
	Size  int64    `json:"size"`
	Paths []string `json:"paths"`
}

// Shared is what an image has in common with another one.
type Shared struct {
	With  string `json:"with,omitempty"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// InspectOptions are the options of [Client.Inspect]. The zero value works.
type InspectOptions struct {
	// Top is how many duplicates and how many of the largest files are listed; default
	// 10.
	Top int
}

// Inspect reports what an image consists of. It waits and fails as Index does.
func (c *Client) Inspect(ctx context.Context, img *Image, o InspectOptions) (*Report, error) {
	if o.Top <= 0 {
		o.Top = 10
	}
	if _, err := c.offered(ctx); err != nil {
		return nil, err
	}
	layers, err := c.Layers(ctx, img)
	if err != nil {
		return nil, err
	}
	r := &Report{Image: img.Name(), Digest: img.Manifest.Digest, Platform: img.Platform.String(), Gear: img.Gear, Original: img.Original,
		Layers: []LayerReport{}, Duplicates: []Duplicate{}, Shared: []Shared{}}
	for i, x := range layers {
		r.Layers = append(r.Layers, LayerReport{img.Layers[i].Digest, img.Layers[i].Size, statsOf(x)})
	}
	if r.index, err = gear.Flatten(layers...); err != nil {
		return nil, fmt.Errorf("the layers of %s do not fit together: %w", img.Name(), err)
	}
	r.Whole = statsOf(r.index)
	var n countingWriter
	if err := r.index.Encode(&n); err != nil {
		return nil, err
	}
	r.IndexBytes = int64(n)
	r.Largest = largest(r.index, o.Top)
	r.Duplicates = duplicates(r.index, o.Top)
	for i := range r.index.Entries {
		e := &r.index.Entries[i]
		_, _, _, notes := gear.Mountable(&e.Entry)
		for _, n := range notes {
			r.LeftOut = append(r.LeftOut, LeftOut{e.Path, n})
		}
	}
	return r, nil
}

type countingWriter int64

// Write implements io.Writer.
func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

func largest(x *gear.Index, top int) []FileSize {
	out := []FileSize{}
	for i := range x.Entries {
		if e := &x.Entries[i]; e.Type == rootfs.File {
			out = append(out, FileSize{e.Path, e.Size})
		}
	}
	slices.SortStableFunc(out, func(a, b FileSize) int { return cmp.Compare(b.Size, a.Size) })
	return out[:min(top, len(out))]
}

// duplicates returns the contents at several paths that take the most space.
func duplicates(x *gear.Index, top int) []Duplicate {
	paths := make([]int, len(x.Files))
	for i := range x.Entries {
		if e := &x.Entries[i]; e.Type == rootfs.File {
			paths[e.File]++
		}
	}
	var which []int32
	for i, n := range paths {
		if n > 1 && x.Files[i].Size > 0 {
			which = append(which, int32(i))
		}
	}
	extra := func(i int32) int64 { return int64(paths[i]-1) * x.Files[i].Size }
	slices.SortStableFunc(which, func(a, b int32) int { return cmp.Compare(extra(b), extra(a)) })
	which = which[:min(top, len(which))]
	out := make([]Duplicate, len(which))
	for i := range x.Entries {
		e := &x.Entries[i]
		if e.Type != rootfs.File {
			continue
		}
		if k := slices.Index(which, e.File); k >= 0 {
			out[k].Size, out[k].Paths = e.Size, append(out[k].Paths, e.Path)
		}
	}
	return out
}

// Other is an image to compare with.
type Other struct {
	Name  string
	Index *gear.Index
}

// CompareAll adds to the report what this image shares with each of several images, and
// what it shares with any of them.
func (r *Report) CompareAll(others []Other) {
	mine := make(map[gear.Name]bool, len(r.index.Files)) // the value says whether the content is shared
	for i := range r.index.Files {
		mine[r.index.Files[i].Name] = false
	}
	for _, o := range others {
		s := Shared{With: o.Name}
		for i := range o.Index.Files {
			f := &o.Index.Files[i]
			if _, ok := mine[f.Name]; ok {
				s.Files, s.Bytes, mine[f.Name] = s.Files+1, s.Bytes+f.Size, true
			}
		}
		r.Shared = append(r.Shared, s)
	}
	if len(others) < 2 {
		return
	}
	r.SharedAny = &Shared{}
	for i := range r.index.Files {
		if f := &r.index.Files[i]; mine[f.Name] {
			r.SharedAny.Files, r.SharedAny.Bytes = r.SharedAny.Files+1, r.SharedAny.Bytes+f.Size
		}
	}
}

// CompareTags adds to the report what the image shares with other images of its
// repository. It takes the last tags of the repository, at most as many as the argument
// most says. It leaves out tags of the same image, of its Gear form and of its original.
// It reports as skipped the tags that have no image for the platform and the tags whose
// images are not converted yet. It stops once it has skipped 2*most tags.
func (c *Client) CompareTags(ctx context.Context, r *Report, img *Image, most int) error {
	tags, err := c.allTags(ctx, img.Repo)
	if err != nil {
		return err
	}
	now := &Client{reg: c.reg, opts: c.opts}
	now.opts.Wait = 0 // images that are not converted are skipped
	seen := map[oci.Digest]bool{img.Manifest.Digest: true}
	if img.Original != "" {
		seen[img.Original] = true
	}
	var others []Other
	for _, tag := range slices.Backward(tags) {
		if len(others) == most || len(r.Skipped) >= 2*most {
			break
		}
		o, err := now.One(ctx, img.Repo, tag, &img.Platform)
		if err == nil && (seen[o.Manifest.Digest] || o.Gear && seen[o.Original]) {
			continue
		}
		var x *gear.Index
		if err == nil {
			seen[o.Manifest.Digest] = true
			x, err = now.Index(ctx, o)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			r.Skipped = append(r.Skipped, tag+": "+briefly(err))
			continue
		}
		others = append(others, Other{o.Name(), x})
	}
	r.CompareAll(others)
	return nil
}

// briefly says in a few words why an image was skipped.
func briefly(err error) string {
	var pending *client.GearPendingError
	if errors.As(err, &pending) && pending.RetryAfter > 0 {
		return "not converted yet"
	}
	return err.Error()
}

// maxTags bounds the number of tags that are listed.
const maxTags = 10_000

func (c *Client) allTags(ctx context.Context, repo string) (tags []string, err error) {
	for last, more := "", true; more && len(tags) < maxTags; last = tags[len(tags)-1] {
		var page []string
		if page, more, err = c.reg.Tags(ctx, repo, last, 1000); err != nil {
			return nil, fmt.Errorf("list the tags of %s: %w", repo, err)
		}
		if tags = append(tags, page...); len(page) == 0 {
			break
		}
	}
	return tags, nil
}
