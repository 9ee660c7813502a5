package predict

import (
	"bufio"
	"bytes"
	"debug/elf"
	"io"
	"path"
	"strings"

	"example.org/slipway/gear"
)

// Open opens the content of a file of the tree. It may fail. A file that cannot be read
// loads nothing.
type Open func(f gear.File) (io.ReaderAt, error)

// Command says how the containers of an image are started.
type Command struct {
	// Args are the entry point and its arguments.
	Args []string
	// Env is the environment. Only PATH is used.
	Env []string
	// Dir is the working directory.
	Dir string
}

const (
	// maxLooks is how many contents a closure looks into.
	maxLooks = 1000
	// maxModules is how many modules are looked for.
	maxModules = 10_000
	// maxText is how many bytes of a script are read.
	maxText = 256 << 10
	// usualPath is the PATH if an image sets none.
	usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// closure follows what files load.
type closure struct {
	*list
	open Open
	look func(entry int) bool // reports whether an entry's content is worth reading
	path []string             // PATH
	libs func() []string      // returns the directories of libraries
	// modules returns the directories in which Python looks for modules.
	modules func() []string
	left    int // how many more contents may be looked into
	names   int // how many more modules may be looked for
}

func newClosure(l *list, env []string, look func(int) bool, open Open) *closure {
	c := &closure{list: l, open: open, look: look, left: maxLooks, names: maxModules}
	search := usualPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			search = v
		}
	}
	c.path = strings.Split(search, ":")
	c.libs = lazily(c.libDirs)
	c.modules = lazily(l.t.pythonDirs)
	return c
}

// lazily returns a function that calls make at most once.
func lazily[T any](make func() T) func() T {
	var v T
	done := false
	return func() T {
		if !done {
			v, done = make(), true
		}
		return v
	}
}

// Complete adds to a prediction what its files load: libraries, interpreters, modules. It
// skips files whose content the donor opened, because the donor also opened what they
// load. d may be nil.
func Complete(t *Tree, d *Donor, files []File, cmd Command, open Open) []File {
	l := newList(t)
	for _, f := range files {
		if e, ok := t.byName()[f.Name]; ok {
			l.add(int(e), f.From)
		}
	}
	newClosure(l, cmd.Env, changed(t, d), open).follow(0)
	return l.files
}

// Static returns what the command of an image opens, as far as that can be determined
// without running it. If the program is small, the result is small.
func Static(t *Tree, cmd Command, open Open) []File {
	l := newList(t)
	c := newClosure(l, cmd.Env, func(int) bool { return true }, open)
	for i, a := range cmd.Args {
		if e, ok := c.program(a, cmd.Dir); ok && (i == 0 || t.x.Entries[e].Mode&0o111 != 0 || script(a)) {
			c.add(e, Closure)
		}
	}
	c.follow(0)
	return l.files
}

// script reports whether an argument looks like a program in some language.
func script(arg string) bool {
	switch path.Ext(arg) {
	case ".py", ".js", ".rb", ".pl", ".sh", ".php", ".jar":
		return true
	}
	return false
}

// program finds the program that a word of a command starts. The word is a path, or a
// name in PATH.
func (c *closure) program(word, dir string) (int, bool) {
	switch {
	case word == "" || strings.HasPrefix(word, "-"):
		return 0, false
	case strings.Contains(word, "/") && !strings.HasPrefix(word, "/"), script(word):
		if e, ok := c.t.regularAt(inDir(dir, word)); ok {
			return e, true
		}
	}
	if strings.HasPrefix(word, "/") {
		return c.t.regularAt(word)
	}
	for _, p := range c.path {
		if e, ok := c.t.regularAt(inDir(p, word)); ok {
			return e, true
		}
	}
	return 0, false
}

// follow looks into the files of the list, beginning with index from, and adds what they
// load, until nothing new is found.
func (c *closure) follow(from int) {
	for i := from; i < len(c.files) && c.left > 0; i++ {
		e := int(c.at[i])
		f, ok := c.t.file(e)
		if !ok || !c.look(e) {
			continue
		}
		c.left--
		r, err := c.open(f)
		if err != nil {
			continue
		}
		c.loads(e, r, f.Size)
	}
}

// loads adds what a file loads.
func (c *closure) loads(entry int, r io.ReaderAt, size int64) {
	p := c.t.x.Entries[entry].Path
	if strings.HasSuffix(p, ".py") {
		c.imports(p, head(r, size))
		return
	}
	var magic [4]byte
	if n, _ := r.ReadAt(magic[:], 0); n < 2 { // n says whether it is long enough
		return
	}
	switch {
	case string(magic[:]) == elf.ELFMAG:
		c.linked(p, r)
	case magic[0] == '#' && magic[1] == '!':
		c.interpreted(p, head(r, size))
	}
}

// head reads the beginning of a text.
func head(r io.ReaderAt, size int64) []byte {
	b := make([]byte, min(size, maxText))
	n, _ := r.ReadAt(b, 0) // after a short read, only less is found
	return b[:n]
}

// interpreted adds the interpreter of a script.
func (c *closure) interpreted(p string, text []byte) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if len(words) == 0 {
		return
	}
	if path.Base(words[0]) == "env" {
		c.addPath(words[0])
		words = words[1:]
		for len(words) > 0 && (strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=")) {
			words = words[1:]
		}
	}
	if len(words) == 0 {
		return
	}
	if e, ok := c.program(words[0], "/"); ok {
		c.add(e, Closure)
		if strings.HasPrefix(path.Base(words[0]), "python") {
			c.imports(p, text)
		}
	}
}

func (c *closure) addPath(p string) bool {
	e, ok := c.t.regularAt(p)
	return ok && c.add(e, Closure)
}

// linked adds what the dynamic linker opens for a program or a library.
func (c *closure) linked(p string, r io.ReaderAt) {
	f, err := elf.NewFile(r)
	if err != nil {
		return
	}
	for _, prog := range f.Progs {
		if prog.Type != elf.PT_INTERP || prog.Filesz > maxParts {
			continue
		}
		b := make([]byte, prog.Filesz)
		if n, _ := prog.ReadAt(b, 0); n == len(b) {
			c.addPath(strings.TrimRight(string(b), "\x00"))
			c.addPath("etc/ld.so.cache")
		}
		if python(p) {
			for _, m := range startModules {
				c.module(m, "")
			}
		}
	}
	dirs := c.runPath(f, p)
	needed, err := f.DynString(elf.DT_NEEDED)
	if err != nil {
		return
	}
	for _, lib := range needed {
		for _, dir := range dirs {
			if e, ok := c.t.regularAt(inDir(dir, lib)); ok {
				c.add(e, Closure)
				break
			}
		}
	}
}

// runPath lists the directories in which the linker looks for the libraries of a file.
func (c *closure) runPath(f *elf.File, p string) []string {
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		list, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, s := range list {
			for dir := range strings.SplitSeq(s, ":") {
				dir = strings.NewReplacer("$ORIGIN", path.Dir("/"+p), "${ORIGIN}", path.Dir("/"+p)).Replace(dir)
				dirs = append(dirs, dir)
			}
		}
	}
	return append(dirs, c.libs()...)
}

// libDirs returns the directories of ld.so.conf and the default directories, including
// Debian's directories for architectures.
func (c *closure) libDirs() []string {
	var dirs []string
	for _, e := range c.t.dirs()["etc/ld.so.conf.d"] {
		f, ok := c.t.file(int(e))
		if !ok || !strings.HasSuffix(c.t.x.Entries[e].Path, ".conf") {
			continue
		}
		r, err := c.open(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(head(r, f.Size))) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	for _, base := range []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"} {
		dirs = append(dirs, base)
		for _, arch := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
			dirs = append(dirs, base+"/"+arch)
		}
	}
	return dirs
}

// python reports whether a path is a path of the Python interpreter.
func python(p string) bool {
	base := path.Base(p)
	return strings.HasPrefix(base, "python") && strings.Trim(base[len("python"):], "0123456789.") == ""
}

// startModules are the modules that Python imports before any program runs.
var startModules = []string{"encodings", "encodings.aliases", "encodings.utf_8", "codecs", "io", "abc", "site", "os", "stat", "posixpath",
	"genericpath", "_collections_abc", "_sitebuiltins", "types", "warnings"}

// pythonDirs returns the directories in which Python looks for modules: the standard
// libraries of the image, and the packages installed next to them.
func (t *Tree) pythonDirs() []string {
	var dirs []string
	named := t.group(path.Base)
	for _, base := range []string{"usr/local/lib", "usr/lib", "opt/venv/lib"} {
		for _, e := range named["os.py"] {
			if dir := path.Dir(t.x.Entries[e].Path); strings.HasPrefix(dir, base+"/python") {
				dirs = append(dirs, dir, dir+"/site-packages", dir+"/dist-packages", dir+"/lib-dynload")
			}
		}
		dirs = append(dirs, base+"/python3/dist-packages")
	}
	return dirs
}

// imports adds the modules that a text imports at its beginning. It sees only statements
// that are not indented.
func (c *closure) imports(p string, text []byte) {
	in := bufio.NewScanner(bytes.NewReader(text))
	in.Buffer(nil, maxText)
	dir := path.Dir(p)
	for in.Scan() {
		line := in.Text()
		if rest, ok := strings.CutPrefix(line, "import "); ok {
			for m := range strings.SplitSeq(rest, ",") {
				if w := strings.Fields(m); len(w) > 0 {
					c.module(w[0], dir)
				}
			}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "from "); ok {
			w := strings.Fields(strings.NewReplacer(",", " ", "(", " ", ")", " ").Replace(rest))
			if len(w) < 2 || w[1] != "import" {
				continue
			}
			c.module(w[0], dir)
			for _, name := range w[2:] { // a module of the package, or another name in it
				c.module(strings.TrimSuffix(w[0], ".")+"."+name, dir)
			}
		}
	}
}

// module adds a module and the packages that contain it.
func (c *closure) module(name, dir string) {
	if c.names--; c.names < 0 {
		return
	}
	dirs := c.modules()
	if strings.HasPrefix(name, ".") {
		up := dir
		for name = name[1:]; strings.HasPrefix(name, "."); name = name[1:] {
			up = path.Dir(up)
		}
		dirs = []string{up}
	} else if dir != "" {
		dirs = append([]string{dir}, dirs...)
	}
	parts := strings.Split(name, ".")
	if len(parts) > 16 {
		return
	}
	for _, d := range dirs {
		if c.moduleIn(d, parts) {
			return
		}
	}
}

// moduleIn adds a module that is in a directory. It returns false if the directory does
// not have it.
func (c *closure) moduleIn(dir string, parts []string) bool {
	found := false
	for _, part := range parts {
		if part == "" || strings.ContainsAny(part, "/\x00*") {
			return found
		}
		if c.source(inDir(dir, part), "__init__") {
			found, dir = true, inDir(dir, part)
			continue
		}
		return c.source(dir, part) || found
	}
	return found
}

// source adds a module's source, or its compiled form, which is opened instead.
func (c *closure) source(dir, name string) bool {
	e, ok := c.t.regularAt(inDir(dir, name+".py"))
	if !ok {
		return false
	}
	at, ok := c.t.compiled()[path.Dir(c.t.x.Entries[e].Path)+"/"+name]
	if !ok {
		at = int32(e)
	}
	if c.add(int(at), Closure) && at != int32(e) && c.left > 0 {
		c.left-- // the source shows what it imports
		if f, ok := c.t.file(e); ok {
			if r, err := c.open(f); err == nil {
				c.imports(c.t.x.Entries[e].Path, head(r, f.Size))
			}
		}
	}
	return true
}
