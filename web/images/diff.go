package images

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/web/format"
)

// diffData is what the page that compares two images shows.
type diffData struct {
	Repo, From, To string
	// Platform is the requested platform. Platforms are the platforms to choose from.
	Platform  string
	Platforms []string
	// FromName and ToName are the images' names as they appear in addresses. FromTree and
	// ToTree are the addresses of their files. FromPlatform and ToPlatform are the
	// platforms that were chosen from their indexes.
	FromName, ToName, FromTree, ToTree string
	FromPlatform, ToPlatform           string
	Problem                            *noFiles
	Asked                              bool

	Added, Removed, Changed diffSum
	// Touched counts entries of which only the time changed. They are shown if Times is
	// set.
	Touched     diffSum
	Times       bool
	ToggleTimes string
	Same        int
	Before, Now fileSum
	// NewContents are the contents that the first image lacks, with their sizes.
	// LayerBytes is the size of the layers that the first image lacks, as pushed.
	NewContents fileSum
	LayerBytes  int64
	NewLayers   int
	Layers      int
	Config      []configChange
	// ConfigProblem says why configs are not compared.
	ConfigProblem string
	Dirs          []dirChange
	MoreDirs      int
	// Uncounted reports that more directories have changes than are counted individually.
	Uncounted bool

	// Path is the path to which the list is restricted. Only restricts the list to
	// entries directly in Path. Whole is the address without these restrictions.
	Path       string
	Only       bool
	Whole      string
	Count, At  int
	Groups     []diffGroup
	Next, Prev string
}

// diffSum is a number of entries and the sum of their bytes.
type diffSum struct {
	Entries int
	Bytes   int64
}

// dirChange counts the changes below a directory, or directly in it.
type dirChange struct {
	Name, Href              string
	Added, Removed, Changed int
	// Bytes is the size of what is new or changed. Share is its share of the largest such
	// size.
	Bytes int64
	Share float64
}

// diffGroup is a run of consecutive changes in the same directory.
type diffGroup struct {
	Dir  string
	Rows []diffRow
}

// diffRow is a row for a change.
type diffRow struct {
	Name, Kind string
	// What is "added", "removed", "changed" or "touched". Details says what changed.
	What, Details string
	Before, Now   int64
}

// configChange is a difference between two images' configs.
type configChange struct{ Name, Before, Now string }

const (
	// maxDiffDirs is how many directories the summary of a difference lists.
	// maxCountedDirs is how many directories are counted for it.
	maxDiffDirs, maxCountedDirs = 20, 10_000
	// maxDiffAt bounds where a page of rows may begin.
	maxDiffAt = 1 << 30
)

// Diff returns the data of the page diff, which compares the files of two images of a
// repository. The request says which. Errors: as for [Absent].
func (p *Pages) Diff(r *http.Request, repo string, v Viewer) (any, error) {
	q := &request{p, v, r}
	d := &diffData{Repo: repo, From: strings.TrimSpace(r.FormValue("from")), To: strings.TrimSpace(r.FormValue("to")), Platform: r.FormValue("platform"),
		Times: r.FormValue("times") != "", Path: strings.Trim(r.FormValue("path"), "/"), Only: r.FormValue("only") != ""}
	if d.Platform != "" {
		d.Platforms = []string{d.Platform}
	}
	if d.From == "" || d.To == "" {
		return d, nil
	}
	d.Asked = true
	err := q.fillDiff(d)
	if !errors.As(err, &d.Problem) && err != nil {
		return nil, err
	}
	return d, nil
}

// fillDiff compares the images. It returns *noFiles if there are no files to show.
func (q *request) fillDiff(d *diffData) error {
	from, to, err := q.sides(d)
	if err != nil {
		return err
	}
	d.FromName, d.ToName = from.ref.String(), to.ref.String()
	d.FromTree, d.ToTree = from.address(q), to.address(q)
	d.FromPlatform, d.ToPlatform = from.img.Platform, to.img.Platform
	done, err := take(q.ctx(), q.trees.walking)
	if err != nil {
		return err
	}
	defer done()
	d.Before, d.Now = from.tree.between(0, len(from.tree.x.Entries)), to.tree.between(0, len(to.tree.x.Entries))
	d.NewContents = newContents(from.tree.x, to.tree.x)
	had := map[oci.Digest]bool{}
	for _, l := range from.img.Layers {
		had[l.Digest] = true
	}
	for _, l := range to.img.Layers {
		if d.Layers++; !had[l.Digest] {
			d.NewLayers++
			d.LayerBytes = plus(d.LayerBytes, l.Size)
		}
	}
	if err := q.compareConfigs(d, from, to); err != nil {
		return err
	}
	d.Whole = q.self("path", "", "only", "", "at", "")
	d.ToggleTimes = q.self("times", "1", "at", "")
	if d.Times {
		d.ToggleTimes = q.self("times", "", "at", "")
	}
	return q.fillChanges(d, from.tree.x, to.tree.x)
}

// compareConfigs compares the settings of two images if both configs can be read.
func (q *request) compareConfigs(d *diffData, from, to *side) error {
	var configs [2]*imageConfig
	for i, s := range []*side{from, to} {
		c, problem, err := q.readConfig(s.ref.Repo, s.img.manifest)
		if err != nil {
			return err
		}
		if problem != "" {
			d.ConfigProblem = s.ref.String() + ": " + problem
			return nil
		}
		configs[i] = c
	}
	d.Config = configs[0].changes(configs[1])
	return nil
}

// newContents returns the contents that the first tree lacks.
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

// fillChanges walks both trees and keeps the changes of the requested page.
func (q *request) fillChanges(d *diffData, from, to *gear.Index) error {
	at, _ := strconv.Atoi(q.r.FormValue("at"))
	d.At = min(max(0, at), maxDiffAt)
	dirs := map[string]*dirChange{}
	err := compareTrees(q.ctx(), from, to, func(path string, a, b *gear.Entry) {
		c := changeOf(from, to, a, b)
		if d.count(c, dirs, path, a, b) && d.lists(path) {
			if d.Count++; d.Count > d.At && d.Count <= d.At+treeRows {
				d.row(path, a, b, c)
			}
		}
	})
	if err != nil {
		return err
	}
	if end := d.At + treeRows; end < d.Count {
		d.Next = q.self("at", strconv.Itoa(end))
	}
	if d.At > 0 && d.Count > 0 {
		d.Prev = q.self("at", strconv.Itoa(max(0, min(d.At, d.Count)-treeRows)))
	}
	q.fillDirs(d, dirs)
	return nil
}

// count adds a change to the sums, and reports whether the change is listed.
func (d *diffData) count(c change, dirs map[string]*dirChange, path string, a, b *gear.Entry) bool {
	n := changeBytes(a, b)
	switch c.what {
	case "":
		d.Same++
		return false
	case "touched":
		d.Touched.add(n)
		return d.Times
	}
	dir := d.dirOf(dirs, path)
	switch c.what {
	case "added":
		d.Added.add(n)
		dir.Added++
		dir.Bytes += n
	case "removed":
		d.Removed.add(n)
		dir.Removed++
	case "changed":
		d.Changed.add(n)
		dir.Changed++
		dir.Bytes += n
	}
	return true
}

// lists reports whether the list includes a path.
func (d *diffData) lists(path string) bool {
	if d.Only {
		dir, _ := cutName(path)
		return dir == d.Path
	}
	return d.Path == "" || path == d.Path || below(path, d.Path)
}

func (s *diffSum) add(n int64) {
	s.Entries++
	s.Bytes += n
}

// changeBytes returns the size of the file that is new or gone.
func changeBytes(a, b *gear.Entry) int64 {
	switch {
	case b != nil && b.Type == rootfs.File:
		return b.Size
	case b == nil && a.Type == rootfs.File:
		return a.Size
	}
	return 0
}

// dirOf returns the directory of the summary to which a path belongs. This is the path's
// first two segments if it has three. Otherwise it is the directory that directly
// contains the path.
func (d *diffData) dirOf(dirs map[string]*dirChange, path string) *dirChange {
	name := path
	if parts := strings.SplitN(path, "/", 4); len(parts) > 2 {
		name = parts[0] + "/" + parts[1]
	} else {
		name, _ = cutName(path)
	}
	c := dirs[name]
	if c == nil {
		c = &dirChange{Name: name}
		if len(dirs) >= maxCountedDirs { // the change counts only in the totals
			d.Uncounted = true
			return c
		}
		dirs[name] = c
	}
	return c
}

// fillDirs puts the directories with the most changes into the summary.
func (q *request) fillDirs(d *diffData, dirs map[string]*dirChange) {
	list := slices.SortedFunc(maps.Values(dirs), func(a, b *dirChange) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Added+b.Removed+b.Changed, a.Added+a.Removed+a.Changed), cmp.Compare(a.Name, b.Name))
	})
	d.MoreDirs = max(0, len(list)-maxDiffDirs)
	for _, c := range list[:len(list)-d.MoreDirs] {
		c.Share = format.Share(c.Bytes, list[0].Bytes)
		if strings.Contains(c.Name, "/") {
			c.Href = q.self("path", c.Name, "only", "", "at", "")
			c.Name = "/" + format.Visible(c.Name)
		} else {
			c.Href = q.self("path", c.Name, "only", "1", "at", "")
			c.Name = "directly in /" + format.Visible(c.Name)
		}
		d.Dirs = append(d.Dirs, *c)
	}
}

// row appends a change to the groups.
func (d *diffData) row(path string, a, b *gear.Entry, c change) {
	dir, name := cutName(path)
	dir = "/" + format.Visible(dir)
	if len(d.Groups) == 0 || d.Groups[len(d.Groups)-1].Dir != dir {
		d.Groups = append(d.Groups, diffGroup{Dir: dir})
	}
	r := diffRow{Name: format.Visible(name), What: c.what, Details: c.details(), Before: -1, Now: -1}
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
