package passwords

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/registry/auth/recent"
)

const (
	// fileCheck is how often the file is checked for changes when it is used.
	fileCheck = time.Second
	// maxFileBytes bounds the file. With 70 bytes a user it may have 200,000 users.
	maxFileBytes = 16 << 20
	// maxBcryptCost bounds the work of one login. A cost of 16 takes about 4 s.
	maxBcryptCost = 16
)

// File checks passwords against an htpasswd file that may change. It is safe for concurrent
// use.
type File struct {
	path   string
	o      FileOptions
	logins *Logins

	nextCheck atomic.Int64 // Unix nanoseconds
	current   atomic.Pointer[userFile]

	mu      sync.Mutex  // one reload at a time
	refused os.FileInfo // the last version of the file that was not accepted
	refusal error       // why
}

// FileOptions are the dependencies of OpenFile. All are required.
type FileOptions struct {
	// Failures counts wrong passwords.
	Failures *recent.Failures
	Logger   *slog.Logger
	Clock    func() time.Time
	// Read is called when a changed file was read, or with the error if it cannot be used.
	Read func(error)
	// Current is called when a check of the file finds that the users in use are the
	// users in the file.
	Current func()
}

// userFile is one version of the file. When it is replaced, the passwords that were
// verified against it are forgotten.
type userFile struct {
	info     os.FileInfo
	users    map[string][]byte // hashes by name
	costs    []int             // the cost of each user's hash, in the order of names
	verified *recent.Cache[struct{}]
}

// OpenFile reads the file. Errors give the line and the user, and never a hash.
func OpenFile(path string, o FileOptions) (*File, error) {
	// Passwords use all cores but one, because serving must go on while they are hashed.
	f := &File{path: path, o: o, logins: NewLogins(runtime.GOMAXPROCS(0)-1, o.Failures, o.Clock)}
	file, err := f.load()
	if err != nil {
		return nil, err
	}
	f.current.Store(file)
	f.nextCheck.Store(o.Clock().Add(fileCheck).UnixNano())
	return f, nil
}

// load reads the file as it is now. It gets the FileInfo before the bytes. So if the file
// is written in between, the next check sees a change.
func (f *File) load() (*userFile, error) {
	in, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("open htpasswd file: %w", err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat htpasswd file: %w", err)
	}
	file := &userFile{info: info, verified: recent.NewCache[struct{}](RememberMost)}
	if file.users, err = parse(in); err != nil {
		return file, fmt.Errorf("htpasswd file %s: %w", f.path, err)
	}
	var names []string
	for name := range file.users {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		cost, err := bcrypt.Cost(file.users[name])
		if err != nil {
			return file, fmt.Errorf("htpasswd file %s: user %q: unreadable bcrypt cost", f.path, name)
		}
		file.costs = append(file.costs, cost)
	}
	return file, nil
}

// byteOrderMark is what some editors put before a text. It would become a part of the
// first user's name.
const byteOrderMark = "\ufeff"

// parse parses lines of the form user:hash. It skips empty lines and lines that
// begin with "#".
func parse(r io.Reader) (map[string][]byte, error) {
	users := map[string][]byte{}
	in := bufio.NewScanner(io.LimitReader(r, maxFileBytes+1))
	read := 0
	for n := 1; in.Scan(); n++ {
		if read += len(in.Bytes()) + 1; read > maxFileBytes {
			return nil, fmt.Errorf("line %d: the file has more than %d bytes", n, maxFileBytes)
		}
		text := in.Text()
		if n == 1 {
			text = strings.TrimPrefix(text, byteOrderMark)
		}
		line := strings.TrimSpace(text)
		if line == "" || line[0] == '#' {
			continue
		}
		name, hash, ok := strings.Cut(line, ":")
		// A line that begins with "$" is a hash without a user, and a line without a
		// colon may be a hash. Neither may be quoted.
		if !ok || name == "" || name[0] == '$' {
			return nil, fmt.Errorf("line %d: not of the form user:hash", n)
		}
		if err := checkBcrypt(hash); err != nil {
			return nil, fmt.Errorf("line %d: user %q: %w", n, name, err)
		}
		if _, twice := users[name]; twice {
			return nil, fmt.Errorf("line %d: user %q is there twice", n, name)
		}
		users[name] = []byte(hash)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read lines: %w", err)
	}
	return users, nil
}

var (
	errNotBcrypt  = errors.New(`the password is not hashed with bcrypt; make the entry with "htpasswd -B"`)
	errBadBcrypt  = errors.New("the bcrypt hash is damaged")
	errBcryptCost = fmt.Errorf("the bcrypt cost is not between %d and %d", bcrypt.MinCost, maxBcryptCost)
)

// checkBcrypt returns an error unless hash has the form $2y$NN$ and 53 characters.
func checkBcrypt(hash string) error {
	if len(hash) < 4 || hash[:2] != "$2" || strings.IndexByte("aby", hash[2]) < 0 || hash[3] != '$' {
		return errNotBcrypt
	}
	if len(hash) != 60 || hash[6] != '$' || strings.Trim(hash[4:6], "0123456789") != "" {
		return errBadBcrypt
	}
	cost, err := strconv.Atoi(hash[4:6])
	if err != nil || cost < bcrypt.MinCost || cost > maxBcryptCost {
		return errBcryptCost
	}
	for _, c := range []byte(hash[7:]) {
		if strings.IndexByte(bcryptAlphabet, c) < 0 {
			return errBadBcrypt
		}
	}
	return nil
}

const bcryptAlphabet = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// file returns the users. If the last check of the file is too long ago, it checks the
// file first. If a changed file cannot be used, the old users stay and the error is
// logged once.
func (f *File) file() *userFile {
	now := f.o.Clock().UnixNano()
	if due := f.nextCheck.Load(); now >= due && f.nextCheck.CompareAndSwap(due, now+int64(fileCheck)) {
		_, _, _ = f.reload(false) // it was logged; the users before the change stay
	}
	return f.current.Load()
}

// Reload reads the file if it has changed. It returns the number of users, and whether they
// were replaced. If the file cannot be used, it returns why, and logs that once for each
// change.
func (f *File) Reload() (users int, changed bool, err error) { return f.reload(true) }

// reload is Reload. Unless asked says that somebody asked for it, a file that may be half
// written is left for the next check.
func (f *File) reload(asked bool) (users int, changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.current.Load()
	info, err := os.Stat(f.path)
	if err == nil && sameVersion(info, old.info) {
		f.accept()
		return len(old.users), false, nil
	}
	if err == nil && f.refused != nil && sameVersion(info, f.refused) {
		return len(old.users), false, f.refusal
	}
	file, err := f.load()
	if err != nil {
		var seen os.FileInfo = missingFile{}
		if file != nil {
			seen = file.info
		}
		if f.refused == nil || !sameVersion(seen, f.refused) {
			f.o.Logger.Error("htpasswd file not usable, the users before the change stay", "error", err)
			f.o.Read(err)
		}
		f.refused, f.refusal = seen, err
		return len(old.users), false, err
	}
	if !asked && f.unfinished(file, old) {
		return len(old.users), false, nil
	}
	f.accept()
	f.current.Store(file)
	f.o.Logger.Info("htpasswd file read again", "path", f.path, "users", len(file.users))
	f.o.Read(nil)
	return len(file.users), true, nil
}

// unfinished reports whether a version of the file lacks users and was written just now.
// Many programs write such a file in place, so the rest of the users may be about to come.
func (f *File) unfinished(file, old *userFile) bool {
	age := f.o.Clock().Sub(file.info.ModTime())
	if age < 0 || age >= fileCheck {
		return false
	}
	for name := range old.users {
		if _, stays := file.users[name]; !stays {
			return true
		}
	}
	return false
}

// accept forgets that a version of the file was refused.
func (f *File) accept() {
	f.refused, f.refusal = nil, nil
	f.o.Current()
}

// missingFile stands for a file that does not exist, so that this error is logged only
// once, too.
type missingFile struct{ os.FileInfo }

func sameVersion(a, b os.FileInfo) bool {
	_, noA := a.(missingFile)
	_, noB := b.(missingFile)
	if noA || noB {
		return noA && noB
	}
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

// Verify returns nil if the password is the user's. The error is ErrWrong, or one of
// [Logins.Do].
func (f *File) Verify(ctx context.Context, addr netip.Addr, name, password string) error {
	key := f.logins.Key(name, password)
	file := f.file()
	return f.logins.Do(ctx, addr, func() bool {
		file = f.current.Load() // it may have been replaced while this login was waiting
		_, ok := file.verified.Get(key, f.o.Clock())
		return ok
	}, func() error {
		hash, known := file.users[name]
		if !known {
			hash = f.logins.decoy(file, name)
		}
		if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !known {
			return ErrWrong
		}
		now := f.o.Clock()
		file.verified.Put(key, struct{}{}, now.Add(RememberFor), now)
		return nil
	})
}

// decoy returns a hash to compare an unknown user's password with, so that the check
// takes as long as for a known user. The hash has the cost of one of the users' hashes.
// For the same name the cost is always the same. If the users' costs differ, an average
// or a changing cost would show that the user is unknown.
func (l *Logins) decoy(file *userFile, name string) []byte {
	sum := l.Key(name, "")
	cost := bcrypt.DefaultCost
	if len(file.costs) > 0 {
		cost = file.costs[binary.LittleEndian.Uint64(sum[:])%uint64(len(file.costs))]
	}
	hash := fmt.Appendf(nil, "$2y$%02d$", cost)
	for i := range 53 {
		hash = append(hash, bcryptAlphabet[sum[i%len(sum)]%64])
	}
	return hash
}

// Hash returns the hash of a user's password. ok is false if there is no such user.
func (f *File) Hash(name string) (hash []byte, ok bool) {
	hash, ok = f.file().users[name]
	return hash, ok
}
