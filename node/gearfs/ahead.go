package gearfs

import (
	"slices"

	"example.org/slipway/gear"
)

const (
	// aheadAfter is how many files in a row a starting container has to miss before the next
	// files are fetched in advance.
	aheadAfter = 3
	// aheadSlack is how many files of the order a container may leave out between two that
	// it misses.
	aheadSlack = 8
	// aheadBytes is how much is fetched in advance at first. It doubles each time that the
	// container misses the file behind it.
	aheadBytes = 256 << 10
)

// ahead fetches files in advance for a container that reads an image in the order of its
// tree, as a search, a copy or a scan does. Opens of local files are not seen. But a
// program that continues in the order misses the first file behind the files that were
// fetched last.
type ahead struct {
	files []gear.File // of the image, in the order of the tree
	at    map[gear.Name]int32
	last  int // index of the file that was missed last, -1 for none
	end   int // index behind the files that were fetched in advance
	row   int // how many files in a row were missed in order
	bytes int64
}

func newAhead(x *gear.Index) *ahead {
	a := &ahead{files: x.Files, at: make(map[gear.Name]int32, len(x.Files)), last: -1}
	for i := range x.Files {
		a.at[x.Files[i].Name] = int32(i)
	}
	return a
}

// missed returns the files to fetch in advance after a file was missed. lacks reports
// whether a file is not local.
func (a *ahead) missed(name gear.Name, lacks func(f gear.File) bool) (files []gear.File) {
	at, ok := a.at[name]
	i := int(at)
	if !ok || i <= a.last && i >= a.last-aheadSlack { // opened at the same time as the last one
		return nil
	}
	inOrder := a.last >= 0 && i > a.last && i <= max(a.last, a.end)+aheadSlack
	if a.last = i; !inOrder {
		a.row, a.bytes, a.end = 1, 0, i
		return nil
	}
	if a.row++; a.row < aheadAfter {
		return nil
	}
	a.bytes = max(2*a.bytes, aheadBytes)
	left := a.bytes
	for a.end = max(a.end, i+1); a.end < len(a.files) && left > 0; a.end++ {
		if f := a.files[a.end]; f.Size <= maxPrefetch && lacks(f) {
			files = append(files, f)
			left -= f.Size
		}
	}
	return slices.Clip(files)
}
