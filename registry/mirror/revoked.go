package mirror

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

// revokedFile is the name of the file of revocations in Options.Dir.
const revokedFile = "revoked"

// revocations are the tags that their upstream has refused since it last confirmed them.
// They are kept in a file, so that a refused tag is not served again after a restart.
//
// A line of the file is + or -, the repository, a space and the tag. The last line about
// a tag counts. A line that was cut off is ignored. init must be called before other
// methods.
type revocations struct {
	mu    sync.RWMutex
	path  string
	tags  map[contentKey]bool
	lines int
}

// init reads the file.
func (r *revocations) init(dir string) error {
	r.path, r.tags = filepath.Join(dir, revokedFile), map[contentKey]bool{}
	file, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) { // ignore a line without an end
			break
		}
		if err != nil {
			return err
		}
		r.lines++
		repo, tag, ok := strings.Cut(strings.TrimSuffix(line[1:], "\n"), " ")
		if !ok {
			continue
		}
		if k := (contentKey{repo, tag}); line[0] == '+' {
			r.tags[k] = true
		} else {
			delete(r.tags, k)
		}
	}
	_ = r.rewrite() // the file may stay long, and the disk may be full
	return nil
}

// has reports whether a tag was refused.
func (r *revocations) has(k contentKey) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tags[k]
}

// set notes whether a tag was refused.
func (r *revocations) set(k contentKey, refused bool) error {
	if r.has(k) == refused { // nearly always
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	line := "-"
	if refused {
		if line = "+"; len(r.tags) >= maxKeys {
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
	file, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s%s %s\n", line, k.repo, k.ref)
	return errors.Join(err, file.Close())
}

// rewrite writes the file anew. r.mu is held, or no other goroutine has r.
func (r *revocations) rewrite() error {
	var b strings.Builder
	for k := range r.tags {
		fmt.Fprintf(&b, "+%s %s\n", k.repo, k.ref)
	}
	next := r.path + ".new"
	if err := os.WriteFile(next, []byte(b.String()), 0o600); err != nil {
		return err
	}
	r.lines = len(r.tags)
	return os.Rename(next, r.path)
}
