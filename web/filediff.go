package web

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/rootfs"
)

// diffData is what the page of the difference of two images shows.
type diffData struct {
	Repo, From, To string
	// FromName and ToName are the images as addresses name them; FromTree and ToTree the addresses of
	// their files.
	FromName, ToName, FromTree, ToTree string
	Problem                            *noFiles
	Asked                              bool

	Added, Removed, Changed diffSum
	// Touched are entries of which only the time changed, shown with Times.
	Touched      diffSum
	Times        bool
	ToggleTimes  string
	Same         int
	Before, Now  fileSum
	NewContents  fileSum
	LayerBytes   int64
	NewLayers    int
	Layers       int
	LayersNewPct float64
	Config       []configChange
	Dirs         []dirChange
	MoreDirs     int

	Path       string
	Whole      string // the address without a path
	Count, At  int
	Groups     []diffGroup
	Next, Prev string
}

// diffSum is a number of entries with their bytes.
type diffSum struct {
	Entries int
	Bytes   int64
}

// dirChange is what changed below a directory at the top.
type dirChange struct {
	Name, Href              string
	Added, Removed, Changed int
	// Bytes are those of what is new or changed, Share their share of the most.
	Bytes int64
	Share float64
}

// diffGroup is changes in one directory, that follow each other.
type diffGroup struct {
	Dir  string
	Rows []diffRow
}

// diffRow is a change.
type diffRow struct {
	Name, Kind string
	// What is added, removed, changed or touched; Details say what changed.
	What, Details string
	Before, Now   int64
}

// configChange is a difference of two images' configs.
type configChange struct{ Name, Before, Now string }

// maxDiffDirs is how many directories the summary of a difference has.
const maxDiffDirs = 20

// diff compares the files of two images of a repository.
func (q *request) diff() error {
	repo := q.rest
	if !oci.ValidName(repo) {
		return noImage()
	}
	if may, err := q.seesRepository(repo); !may {
		return err
	}
	v := q.r.URL.Query()
	d := &diffData{Repo: repo, From: strings.TrimSpace(v.Get("from")), To: strings.TrimSpace(v.Get("to")), Times: v.Get("times") != "", Path: strings.Trim(v.Get("path"), "/")}
	if d.From != "" && d.To != "" {
		d.Asked = true
		err := q.fillDiff(d)
		if !errors.As(err, &d.Problem) && err != nil {
			return err
		}
	}
	q.show(http.StatusOK, "diff", "Differences in "+repo, d)
	return nil
}

// side is one of the images that are compared.
type side struct {
	img    *image
	tree   *fileTree
	config runConfig
}

func (q *request) side(repo, ref string) (s side, err error) {
	i, ok := parseImage(imageRef{repo, ref}.String())
	if !ok {
		return s, noImage()
	}
	if s.img, err = q.imageOf(repo, i.Ref, q.r.FormValue("platform")); err != nil {
		return s, err
	}
	if s.tree, err = q.h.treeOf(q.ctx(), repo, s.img); err != nil {
		return s, err
	}
	b, err := q.h.opts.Files.Config(q.ctx(), repo, s.img.Config.Digest)
	if err == nil && json.Unmarshal(b, &s.config) != nil {
		s.config = runConfig{} // which runtimes will complain of
	}
	if oci.HasCode(err, oci.CodeBlobUnknown) {
		err = nil
	}
	return s, err
}

// fillDiff compares. Errors: *noFiles.
func (q *request) fillDiff(d *diffData) error {
	d.FromName, d.ToName = imageRef{d.Repo, d.From}.String(), imageRef{d.Repo, d.To}.String()
	d.FromTree, d.ToTree = q.h.render.base+"tree/"+d.FromName, q.h.render.base+"tree/"+d.ToName
	from, err := q.side(d.Repo, d.From)
	if err != nil {
		return err
	}
	to, err := q.side(d.Repo, d.To)
	if err != nil {
		return err
	}
	d.Before, d.Now = from.tree.between(0, len(from.tree.x.Entries)), to.tree.between(0, len(to.tree.x.Entries))
	d.NewContents = newContents(from.tree.x, to.tree.x)
	had := map[oci.Digest]bool{}
	for _, l := range from.img.Layers {
		had[l.Digest] = true
	}
	for _, l := range to.img.Layers {
		if d.Layers++; !had[l.Digest] {
			d.NewLayers++
			d.LayerBytes += l.Size
		}
	}
	d.Config = from.config.changes(&to.config)
	d.Whole = q.self("path", "", "at", "")
	d.ToggleTimes = q.self("times", "1", "at", "")
	if d.Times {
		d.ToggleTimes = q.self("times", "", "at", "")
	}
	q.fillChanges(d, from.tree.x, to.tree.x)
	return nil
}

// newContents are the contents that the first tree has not.
func newContents(from, to *gear.Index) (n fileSum) {
	had := make(map[gear.Name]struct{}, len(from.Files))
	for i := range from.Files {
		had[from.Files[i].Name] = struct{}{}
	}
	for i := range to.Files {
		if _, ok := had[to.Files[i].Name]; !ok {
			n.Files++
			n.Bytes += to.Files[i].Size
		}
	}
	return n
}

// fillChanges walks both trees and keeps the changes of the page that is asked for.
func (q *request) fillChanges(d *diffData, from, to *gear.Index) {
	var at int
	_, _ = fmt.Sscanf(q.r.URL.Query().Get("at"), "%d", &at)
	d.At = max(0, at)
	dirs := map[string]*dirChange{}
	compareTrees(from, to, func(path string, a, b *gear.Entry) {
		what, details := describeChange(from, to, a, b)
		n := changeBytes(a, b)
		var top *dirChange
		if what != "" && what != "touched" {
			top = dirOf(dirs, path)
		}
		switch what {
		case "":
			d.Same++
			return
		case "added":
			d.Added.add(n)
			top.Added++
			top.Bytes += n
		case "removed":
			d.Removed.add(n)
			top.Removed++
		case "changed":
			d.Changed.add(n)
			top.Changed++
			top.Bytes += n
		case "touched":
			if d.Touched.add(n); !d.Times {
				return
			}
		}
		if d.Path != "" && path != d.Path && !below(path, d.Path) {
			return
		}
		if d.Count++; d.Count > d.At && d.Count <= d.At+treeRows {
			d.row(path, a, b, what, details)
		}
	})
	if end := d.At + treeRows; end < d.Count {
		d.Next = q.self("at", fmt.Sprint(end))
	}
	if d.At > 0 {
		d.Prev = q.self("at", fmt.Sprint(max(0, d.At-treeRows)))
	}
	q.fillDirs(d, dirs)
}

func (s *diffSum) add(n int64) {
	s.Entries++
	s.Bytes += n
}

// changeBytes are those of the file that is new, or gone.
func changeBytes(a, b *gear.Entry) int64 {
	switch {
	case b != nil && b.Type == rootfs.File:
		return b.Size
	case b == nil && a.Type == rootfs.File:
		return a.Size
	}
	return 0
}

// dirOf returns the directory of the summary that a path belongs to: its first two
// segments, if it has three.
func dirOf(dirs map[string]*dirChange, path string) *dirChange {
	name := path
	if parts := strings.SplitN(path, "/", 4); len(parts) > 2 {
		name = parts[0] + "/" + parts[1]
	} else {
		name, _ = cutName(path)
	}
	c := dirs[name]
	if c == nil {
		c = &dirChange{Name: name}
		dirs[name] = c
	}
	return c
}

// fillDirs puts the directories where most changed into the summary.
func (q *request) fillDirs(d *diffData, dirs map[string]*dirChange) {
	list := slices.SortedFunc(maps.Values(dirs), func(a, b *dirChange) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Added+b.Removed+b.Changed, a.Added+a.Removed+a.Changed), cmp.Compare(a.Name, b.Name))
	})
	d.MoreDirs = max(0, len(list)-maxDiffDirs)
	for _, c := range list[:len(list)-d.MoreDirs] {
		if c.Share = share(c.Bytes, list[0].Bytes); c.Name != "" {
			c.Href = q.self("path", c.Name, "at", "")
		}
		c.Name = "/" + showName(c.Name)
		d.Dirs = append(d.Dirs, *c)
	}
}

// row appends a change to the groups.
func (d *diffData) row(path string, a, b *gear.Entry, what, details string) {
	dir, name := cutName(path)
	dir = "/" + showName(dir)
	if len(d.Groups) == 0 || d.Groups[len(d.Groups)-1].Dir != dir {
		d.Groups = append(d.Groups, diffGroup{Dir: dir})
	}
	r := diffRow{Name: showName(name), What: what, Details: details, Before: -1, Now: -1}
	if a != nil {
		r.Kind = kinds[a.Type]
		if a.Type == rootfs.File {
			r.Before = a.Size
		}
	}
	if b != nil {
		r.Kind = kinds[b.Type]
		if b.Type == rootfs.File {
			r.Now = b.Size
		}
	}
	g := &d.Groups[len(d.Groups)-1]
	g.Rows = append(g.Rows, r)
}

// compareTrees calls each for every path of two trees, in their order; a or b is nil
// where a tree has not the path.
func compareTrees(from, to *gear.Index, each func(path string, a, b *gear.Entry)) {
	i, k := 0, 0
	for i < len(from.Entries) || k < len(to.Entries) {
		c := 0
		switch {
		case i == len(from.Entries):
			c = 1
		case k == len(to.Entries):
			c = -1
		default:
			c = gear.ComparePaths(from.Entries[i].Path, to.Entries[k].Path)
		}
		switch {
		case c < 0:
			each(from.Entries[i].Path, &from.Entries[i], nil)
		case c > 0:
			each(to.Entries[k].Path, nil, &to.Entries[k])
		default:
			each(from.Entries[i].Path, &from.Entries[i], &to.Entries[k])
		}
		if c <= 0 {
			i++
		}
		if c >= 0 {
			k++
		}
	}
}

// describeChange tells what became of an entry: added, removed, changed, touched if that
// is only its time, "" if nothing.
func describeChange(from, to *gear.Index, a, b *gear.Entry) (what, details string) {
	switch {
	case a == nil:
		return "added", ""
	case b == nil:
		return "removed", ""
	}
	ma, mb := behind(from, a), behind(to, b)
	var list []string
	if ma.Type != mb.Type {
		return "changed", kinds[ma.Type] + " is now " + kinds[mb.Type]
	}
	if ma.File >= 0 && mb.File >= 0 && from.Files[ma.File].Name != to.Files[mb.File].Name {
		list = append(list, "content")
	}
	if ma.Link != mb.Link {
		list = append(list, fmt.Sprintf("link to %s, now to %s", showName(ma.Link), showName(mb.Link)))
	}
	if ma.Mode != mb.Mode {
		list = append(list, fmt.Sprintf("mode %04o, now %04o", ma.Mode, mb.Mode))
	}
	if ma.UID != mb.UID || ma.GID != mb.GID {
		list = append(list, fmt.Sprintf("owner %d:%d, now %d:%d", ma.UID, ma.GID, mb.UID, mb.GID))
	}
	if !slices.Equal(ma.Xattrs, mb.Xattrs) {
		list = append(list, "extended attributes")
	}
	if ma.Major != mb.Major || ma.Minor != mb.Minor {
		list = append(list, "device number")
	}
	if len(list) > 0 {
		return "changed", strings.Join(list, "; ")
	}
	if ma.Sec != mb.Sec || ma.Nsec != mb.Nsec {
		return "touched", "time " + formatTime(time.Unix(ma.Sec, 0)) + ", now " + formatTime(time.Unix(mb.Sec, 0))
	}
	return "", ""
}

// behind is the file that an entry is a name of.
func behind(x *gear.Index, e *gear.Entry) *gear.Entry {
	if e.Type == rootfs.HardLink {
		if i, ok := x.Lookup(e.Link); ok {
			return &x.Entries[i]
		}
	}
	return e
}
