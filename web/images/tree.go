package images

import (
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/gear/rootfs"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/web/format"
)

const (
	// treeRows is how many rows a page of files has.
	treeRows = 200
	// maxHolders is how many repositories are checked for sharing a file.
	maxHolders = 50
	// treemapParts is how many parts a treemap has. One more part stands for the rest.
	treemapParts = 24
)

// treeData is what the page of an image's files shows.
type treeData struct {
	Repo, Ref, Name string
	// Image and Diff are addresses: of the image's page, and of the comparison with
	// another image.
	Image, Diff string
	Digest      oci.Digest
	// Platform is the platform that was chosen from Platforms. MorePlatforms is how many
	// are not listed.
	Platform      string
	Platforms     []link
	MorePlatforms int
	// Problem is set if there are no files to show. Then the rest is not set.
	Problem *noFiles

	All     fileSum
	Entries int
	// LayerBytes is the size of the layers as they were pushed.
	LayerBytes int64
	Largest    []fileRow
	Layers     []treeLayer
	Profile    *profile
	Share      *shareView

	Path, Search string
	Crumbs       []link
	Here         fileSum
	// Count is how many rows there are. From is the number of the first that is shown.
	Count, From int
	Rows        []fileRow
	Sort        string
	SortName    string
	SortSize    string
	Next, Prev  string
	Treemap     template.HTML
	// Shared reports that rows say what they share with other repositories.
	Shared bool
	// Back leads from a search to the directories.
	Back string
}

// link is a text with an address. The address is empty for the current page.
type link struct{ Text, Href string }

// treeLayer is what a layer contributes to a tree.
type treeLayer struct {
	Number int
	Digest string
	fileSum
	Size int64
}

// fileRow is a row of a table of files.
type fileRow struct {
	Name, Href, Kind, Link string
	Dir                    bool
	fileSum
	Mode, Owner string
	Time        time.Time
	Marks       []string
	Layer       int
	Opened      fileSum
	// Share is the share of a directory's bytes that containers open.
	Share float64
	// Others is how many other repositories have the file. More reports that there may be
	// more.
	Others int
	More   bool
	place  int32
}

// shareView is what the image shares with others.
type shareView struct {
	gearfacts.Share
	// Counting reports that the numbers are not ready.
	Counting bool
	// Everywhere reports that all images of the registry were compared. Otherwise only
	// the images of the repository were.
	Everywhere bool
	// LayerBytes is the size of the layers as pushed.
	LayerBytes int64
}

// Tree returns the data of the page tree, which shows the files of an image. The request
// says which of them. Errors: as for [Absent], and ErrNoDirectory.
func (p *Pages) Tree(r *http.Request, at Ref, v Viewer) (any, error) {
	q := &request{p, v, r}
	d := &treeData{Repo: at.Repo, Ref: at.Ref, Name: at.String(), Search: strings.TrimSpace(r.FormValue("q")), Path: strings.Trim(r.FormValue("path"), "/"),
		Sort: r.FormValue("sort"), Image: p.opts.Base + "image/" + at.String(), Diff: q.diffWith(at, r.FormValue("platform"))}
	err := q.fillTree(d, at)
	if !errors.As(err, &d.Problem) && err != nil {
		return nil, err
	}
	return d, nil
}

// diffWith returns the address of the page that compares another tag with an image, for a
// platform.
func (q *request) diffWith(to Ref, platform string) string {
	v := url.Values{"to": {to.Ref}}
	if platform != "" {
		v.Set("platform", platform)
	}
	return q.opts.Base + "diff/" + to.Repo + "?" + v.Encode()
}

// fillTree fills a page. It returns *noFiles if there are no files to show.
func (q *request) fillTree(d *treeData, ref Ref) error {
	img, err := q.imageOf(ref.Repo, ref.Ref, q.r.FormValue("platform"))
	if err != nil {
		return err
	}
	d.Digest, d.Platform, d.MorePlatforms = img.Digest, img.Platform, img.MorePlatforms
	d.Diff = q.diffWith(ref, img.Platform)
	for _, p := range img.Platforms {
		l := link{Text: format.Visible(p)}
		if p != img.Platform {
			l.Href = q.self("platform", p, "from", "")
		}
		d.Platforms = append(d.Platforms, l)
	}
	t, err := q.treeOf(q.ctx(), ref.Repo, img)
	if err != nil {
		return err
	}
	d.All, d.Entries = t.between(0, len(t.x.Entries)), len(t.x.Entries)-t.first
	for k, l := range img.Layers {
		d.LayerBytes = plus(d.LayerBytes, l.Size)
		d.Layers = append(d.Layers, treeLayer{k + 1, string(l.Digest), t.perLayer[k], l.Size})
	}
	d.Profile, err = q.profileOf(t, ref.Repo, img.Digest)
	if err := q.leaveOut("profile", err); err != nil {
		return err
	}
	if d.Path == "" && d.Search == "" {
		d.Share = q.shareOf(t, ref.Repo, img.Digest, d.LayerBytes)
		for _, i := range t.largest {
			d.Largest = append(d.Largest, q.fileRow(t, d.Profile, i, true))
		}
	}
	if err := q.fillRows(d, t); err != nil {
		return err
	}
	return q.leaveOut("who else has the files", q.fillShared(d, t))
}

// leaveOut logs why a part of a page could not be made. The rest is shown without that
// part. It returns an error only if nobody waits for the page any more.
func (q *request) leaveOut(part string, err error) error {
	if err == nil || q.ctx().Err() != nil {
		return q.ctx().Err()
	}
	q.log.Warn("a part of a page is left out", "path", q.r.URL.Path, "part", part, "error", err)
	return nil
}

// fillRows puts the files of a directory, or the files that a search found, into a page.
func (q *request) fillRows(d *treeData, t *fileTree) error {
	done, err := take(q.ctx(), q.trees.walking)
	if err != nil {
		return err
	}
	defer done()
	if d.Sort != "size" && (d.Sort != "" || d.Search != "") {
		d.Sort = "name"
	} else {
		d.Sort = "size"
	}
	var places []int32
	if d.Search != "" {
		if places, err = t.search(q.ctx(), d.Search); err != nil {
			return err
		}
		if d.Sort == "size" {
			t.bySize(places)
		}
	} else {
		from, to, ok := t.dir(d.Path)
		if !ok {
			return ErrNoDirectory
		}
		d.Here = t.between(from, to)
		places = t.children(from, to)
		d.Crumbs = q.crumbs(d.Path)
		sorted := slices.Clone(places)
		t.bySize(sorted)
		d.Treemap = treemap(t, d.Profile, sorted)
		if d.Sort == "size" {
			places = sorted
		}
	}
	d.SortName, d.SortSize = q.self("sort", "name", "from", ""), q.self("sort", "size", "from", "")
	d.Back = q.self("q", "", "from", "", "sort", "")
	d.Count = len(places)
	page := q.page(d.Count, &d.From, &d.Prev, &d.Next)
	for _, i := range places[d.From:page] {
		d.Rows = append(d.Rows, q.fileRow(t, d.Profile, i, d.Search != ""))
	}
	return nil
}

// page reads from the request where a page of rows begins, and returns where it ends.
func (q *request) page(count int, from *int, prev, next *string) (to int) {
	n, _ := strconv.Atoi(q.r.FormValue("from"))
	*from = min(max(n, 0), max(0, count-1))
	to = min(*from+treeRows, count)
	if to < count {
		*next = q.self("from", strconv.Itoa(to))
	}
	if *from > 0 {
		*prev = q.self("from", strconv.Itoa(max(0, *from-treeRows)))
	}
	return to
}

// self returns the page's own address with some parameters changed. Empty parameters are
// left out.
func (q *request) self(change ...string) string {
	v := url.Values{}
	for _, k := range []string{"path", "q", "sort", "platform", "from", "to", "at", "times", "only"} {
		if s := q.r.FormValue(k); s != "" { // parsed once, because pages have hundreds of links
			v.Set(k, s)
		}
	}
	for i := 0; i < len(change); i += 2 {
		if v.Set(change[i], change[i+1]); change[i+1] == "" {
			v.Del(change[i])
		}
	}
	if s := v.Encode(); s != "" {
		return q.r.URL.EscapedPath() + "?" + s
	}
	return q.r.URL.EscapedPath()
}

// cutName splits a path into its directory and its name. The directory "" is the root.
func cutName(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

func (q *request) crumbs(path string) []link {
	out := []link{{"/", q.self("path", "", "from", "")}}
	for i := 0; i < len(path); i++ {
		end := i + strings.IndexByte(path[i:]+"/", '/')
		out = append(out, link{format.Visible(path[i:end]), q.self("path", path[:end], "from", "")})
		i = end
	}
	out[len(out)-1].Href = ""
	return out
}

// kinds names the types of entries.
var kinds = [...]string{rootfs.Dir: "directory", rootfs.File: "file", rootfs.Symlink: "symbolic link", rootfs.HardLink: "file", rootfs.CharDevice: "character device",
	rootfs.BlockDevice: "block device", rootfs.Fifo: "pipe", rootfs.Socket: "socket", rootfs.Whiteout: "whiteout", rootfs.Opaque: "opaque"}

// fileRow describes an entry. If whole is set, the row shows the complete path.
func (q *request) fileRow(t *fileTree, p *profile, i int32, whole bool) fileRow {
	e := &t.x.Entries[i]
	r := fileRow{Kind: kinds[e.Type], Dir: e.Type == rootfs.Dir, fileSum: t.sum(i), Link: format.Visible(e.Link),
		Layer: int(t.layer[i]) + 1, Opened: p.between(int(i), int(t.end[i])), place: i}
	r.Share = format.Share(r.Opened.Bytes, r.Bytes)
	_, name := cutName(e.Path)
	if whole {
		name = e.Path
	}
	r.Name = format.Visible(name)
	if r.Dir {
		r.Href = q.self("path", e.Path, "from", "", "q", "")
	}
	meta := &e.Entry
	if e.Type == rootfs.HardLink {
		if k, ok := t.x.Lookup(e.Link); ok {
			meta = &t.x.Entries[k].Entry
			if p != nil && e.File >= 0 && p.opened[e.File] {
				r.Opened = fileSum{1, meta.Size}
			}
		}
		// The bytes count only where the file is, so that a directory's bytes are the sum
		// of its rows.
		r.Marks = append(r.Marks, "the same file as "+r.Link+", "+format.Bytes(meta.Size))
		r.Link = ""
	}
	r.Mode, r.Owner, r.Time = fmt.Sprintf("%04o", meta.Mode), fmt.Sprintf("%d:%d", meta.UID, meta.GID), time.Unix(meta.Sec, int64(meta.Nsec))
	r.Marks = append(r.Marks, marks(meta)...)
	return r
}

// marks lists what is unusual about a file.
func marks(e *rootfs.Entry) (out []string) {
	for _, m := range []struct {
		bit  uint32
		name string
	}{{0o4000, "setuid"}, {0o2000, "setgid"}} {
		if e.Mode&m.bit != 0 {
			out = append(out, m.name)
		}
	}
	for _, x := range e.Xattrs {
		if x.Name == "security.capability" {
			out = append(out, "capabilities")
		} else if len(out) < 8 {
			out = append(out, "attribute "+format.Visible(x.Name))
		}
	}
	if e.Type == rootfs.CharDevice || e.Type == rootfs.BlockDevice {
		out = append(out, fmt.Sprintf("device %d:%d", e.Major, e.Minor))
	}
	return out
}
