package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxStartFiles bounds the files of a start in a report, and MaxStartPath the length in
	// bytes of a path.
	MaxStartFiles, MaxStartPath = 100, 160

	// maxStartBytes bounds the memory of all starts in a book. Like the rest of a book, one
	// client has at most maxShare of it. A report whose start has no room counts without it.
	maxStartBytes = 16 << 20
	// startWithin bounds how far the events of a start are from its beginning. An agent
	// follows a start for a minute.
	startWithin = time.Hour
	maxOrigin   = 16
)

// Start is what happened to the files of an image when a container of it started last.
type Start struct {
	Began time.Time `json:"began"`
	// Over says that the start is over.
	Over bool `json:"over,omitempty"`
	// Files are the files with the earliest events, in the order of these. More counts the
	// others.
	Files []StartFile `json:"files"`
	More  int         `json:"more,omitempty"`
}

// StartFile is what happened to a file. Times count from the beginning of the start, and may be
// slightly before it. A time is nil if the event did not happen.
type StartFile struct {
	// Path is the file's path in the image, or the end of it.
	Path string `json:"path"`
	// From says in a word why the node expected the file, or is empty if it did not.
	From string `json:"from,omitempty"`
	// Wanted is when a container opened the file, Asked when the node requested it, and Here
	// when it had arrived.
	Wanted *time.Duration `json:"wanted_ns,omitempty"`
	Asked  *time.Duration `json:"asked_ns,omitempty"`
	Here   *time.Duration `json:"here_ns,omitempty"`
}

// Add appends a file that had an event, unless the start has the number most of files already. Then
// it counts the file. It shortens the path, and replaces what a report may not contain. A report
// has at most MaxStartFiles.
func (s *Start) Add(f StartFile, most int) {
	switch {
	case f.Wanted == nil && f.Asked == nil && f.Here == nil:
	case len(s.Files) >= most:
		s.More++
	default:
		f.Path = plain(f.Path)
		s.Files = append(s.Files, f)
	}
}

// plain returns the end of a path, as a text that a report may contain.
func plain(path string) string {
	path = strings.Map(func(r rune) rune {
		if control(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(path, string(utf8.RuneError)))
	if len(path) <= MaxStartPath {
		return path
	}
	const dots = "…"
	path = path[len(path)-MaxStartPath+len(dots):]
	for path != "" && !utf8.RuneStart(path[0]) {
		path = path[1:]
	}
	return dots + path
}

// check returns an error for a start that no agent would report.
func (s *Start) check() error {
	if len(s.Files) > MaxStartFiles || s.More < 0 {
		return fmt.Errorf("a start has at most %d files", MaxStartFiles)
	}
	for i := range s.Files {
		f := &s.Files[i]
		if len(f.Path) > MaxStartPath || len(f.From) > maxOrigin || strings.ContainsFunc(f.Path+f.From, control) || !utf8.ValidString(f.Path+f.From) {
			return fmt.Errorf("file %.40q... of a start is too long or no text", f.Path)
		}
		for _, at := range []*time.Duration{f.Wanted, f.Asked, f.Here} {
			if at != nil && (*at < -startWithin || *at > startWithin) {
				return fmt.Errorf("file %.40q of a start has an event at %v", f.Path, *at)
			}
		}
	}
	return nil
}

// bytes returns about how much memory a start takes.
func (s *Start) bytes() int {
	if s == nil {
		return 0
	}
	n := 80
	for i := range s.Files {
		n += 80 + len(s.Files[i].Path) + len(s.Files[i].From)
	}
	return n
}

// Starts returns the last starts of an image of a repository, at most n of them, the newest first.
// The image is that of one of some manifests. A start that claims to be later than its report counts
// as old as that.
func (b *Book) Starts(repo string, manifests []string, n int) []Image {
	b.mu.Lock()
	b.expire()
	var out []Image
	for k, i := range b.reports {
		if k.repo == repo && i.Start != nil && slices.Contains(manifests, i.Manifest) {
			out = append(out, i)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(out, func(x, y Image) int {
		return cmp.Or(y.began().Compare(x.began()), cmp.Compare(x.Node, y.Node), cmp.Compare(x.Image, y.Image))
	})
	return out[:min(n, len(out))]
}

// began returns when a start began, or when it was reported if that was earlier.
func (i *Image) began() time.Time {
	if i.Seen.Before(i.Start.Began) {
		return i.Seen
	}
	return i.Start.Began
}
