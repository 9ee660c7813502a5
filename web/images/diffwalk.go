package images

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/rootfs"
	"example.org/slipway/web/format"
)

// compareTrees calls the function each for every path of two trees, in order. a or b is
// nil if that tree lacks the path. It returns an error only if ctx has ended.
func compareTrees(ctx context.Context, from, to *gear.Index, each func(path string, a, b *gear.Entry)) error {
	for i, k := 0, 0; i < len(from.Entries) || k < len(to.Entries); {
		if (i+k)%checkEvery < 2 && ctx.Err() != nil { // a step advances by one or two
			return ctx.Err()
		}
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
	return nil
}

// change is what happened to an entry. The page makes words of it only for the changes
// that it shows.
type change struct {
	// what is "added", "removed", "changed", "touched" if only the time differs, or "" if
	// nothing differs.
	what string
	// differs says in what the entries differ, as bits. was and is are the files that the
	// entry names.
	differs int
	was, is *gear.Entry
}

const (
	inType = 1 << iota
	inContent
	inLink
	inMode
	inOwner
	inAttributes
	inDevice
	inTime
)

// changeOf returns what happened to an entry.
func changeOf(from, to *gear.Index, a, b *gear.Entry) change {
	switch {
	case a == nil:
		return change{what: "added"}
	case b == nil:
		return change{what: "removed"}
	}
	c := change{was: behind(from, a), is: behind(to, b)}
	note := func(bit int, differs bool) {
		if differs {
			c.differs |= bit
		}
	}
	if note(inType, c.was.Type != c.is.Type); c.differs == 0 { // otherwise the rest is not comparable
		note(inContent, c.was.File >= 0 && c.is.File >= 0 && from.Files[c.was.File].Name != to.Files[c.is.File].Name)
		note(inLink, c.was.Link != c.is.Link)
		note(inMode, c.was.Mode != c.is.Mode)
		note(inOwner, c.was.UID != c.is.UID || c.was.GID != c.is.GID)
		note(inAttributes, !slices.Equal(c.was.Xattrs, c.is.Xattrs))
		note(inDevice, c.was.Major != c.is.Major || c.was.Minor != c.is.Minor)
		note(inTime, c.was.Sec != c.is.Sec || c.was.Nsec != c.is.Nsec)
	}
	switch c.differs {
	case 0:
	case inTime:
		c.what = "touched"
	default:
		c.what = "changed"
	}
	return c
}

// details describes in words what differs.
func (c *change) details() string {
	if c.what == "touched" {
		return "time " + format.Time(time.Unix(c.was.Sec, 0)) + ", now " + format.Time(time.Unix(c.is.Sec, 0))
	}
	var list []string
	say := func(bit int, words func() string) {
		if c.differs&bit != 0 {
			list = append(list, words())
		}
	}
	say(inType, func() string { return kinds[c.was.Type] + " is now " + kinds[c.is.Type] })
	say(inContent, func() string { return "content" })
	say(inLink, func() string {
		return "link to " + format.Visible(c.was.Link) + ", now to " + format.Visible(c.is.Link)
	})
	say(inMode, func() string { return fmt.Sprintf("mode %04o, now %04o", c.was.Mode, c.is.Mode) })
	say(inOwner, func() string {
		return fmt.Sprintf("owner %d:%d, now %d:%d", c.was.UID, c.was.GID, c.is.UID, c.is.GID)
	})
	say(inAttributes, func() string { return "extended attributes" })
	say(inDevice, func() string { return "device number" })
	return strings.Join(list, "; ")
}

// behind returns the file that an entry names.
func behind(x *gear.Index, e *gear.Entry) *gear.Entry {
	if e.Type == rootfs.HardLink {
		if i, ok := x.Lookup(e.Link); ok {
			return &x.Entries[i]
		}
	}
	return e
}
