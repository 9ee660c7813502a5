// Package revoked remembers, over restarts, the tags that their upstream has refused since
// it last confirmed them.
package revoked

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// file is the name of the file in the directory given to Open.
const file = "revoked"

// most bounds the number of tags.
const most = 100_000

// tag is a tag of a repository.
type tag struct{ repo, name string }

// Tags are the refused tags. They are kept in a file, so that a refused tag is not served
// again after a restart. All methods may run concurrently.
//
// A line of the file is + or -, the repository, a space and the tag. The last line about
// a tag counts. A line that was cut off is ignored.
type Tags struct {
	mu    sync.RWMutex
	path  string
	tags  map[tag]bool
	lines int
}

// Open reads the file in a directory.
func Open(dir string) (*Tags, error) {
	r := &Tags{path: filepath.Join(dir, file), tags: map[tag]bool{}}
	f, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := r.read(f); err != nil {
		return nil, err
	}
	_ = r.rewrite() // the file may stay long, and the disk may be full
	return r, nil
}

func (r *Tags) read(f io.Reader) error {
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) { // ignore a line without an end
			return nil
		}
		if err != nil {
			return err
		}
		r.lines++
		repo, name, ok := strings.Cut(strings.TrimSuffix(line[1:], "\n"), " ")
		if !ok {
			continue
		}
		if k := (tag{repo, name}); line[0] == '+' {
			r.tags[k] = true
		} else {
			delete(r.tags, k)
		}
	}
}

// Has reports whether a tag was refused.
func (r *Tags) Has(repo, name string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tags[tag{repo, name}]
}

// Set notes whether a tag was refused.
func (r *Tags) Set(repo, name string, refused bool) error {
	k := tag{repo, name}
	if r.Has(repo, name) == refused { // nearly always
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	line := "-"
	if refused {
		if line = "+"; len(r.tags) >= most {
			return fmt.Errorf("there are %d refused tags already", len(r.tags))
		}
		r.tags[k] = true
	} else {
		delete(r.tags, k)
	}
	const slack = 1000
	if r.lines++; r.lines > 2*len(r.tags)+slack {
		return r.rewrite()
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s%s %s\n", line, k.repo, k.name)
	return errors.Join(err, f.Close())
}

// rewrite writes the file anew. r.mu is held, or no other goroutine has r.
func (r *Tags) rewrite() error {
	var b strings.Builder
	for k := range r.tags {
		fmt.Fprintf(&b, "+%s %s\n", k.repo, k.name)
	}
	next := r.path + ".new"
	if err := os.WriteFile(next, []byte(b.String()), 0o600); err != nil {
		return err
	}
	r.lines = len(r.tags)
	return os.Rename(next, r.path)
}
