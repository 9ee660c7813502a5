package auth

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
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

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/recent"
)

const (
	// htpasswdCheck is how often the file is checked for changes when it is used.
	htpasswdCheck = time.Second
	// verifiedTTL is how long a correct password is remembered, so that it need not be
	// hashed again.
	verifiedTTL = 5 * time.Minute
	// verifiedMax bounds the number of remembered passwords, which take about 1 MB.
	verifiedMax = 10_000
	// maxHTPasswdBytes bounds the file. With 70 bytes a user it may have 200,000 users.
	maxHTPasswdBytes = 16 << 20
	// maxBcryptCost bounds the work of one login. A cost of 16 takes about 4 s.
	maxBcryptCost = 16
	// bcryptQueue is how many logins may wait for each login that is being computed.
	bcryptQueue = 64
)

// errWrongPassword is the error for unknown users and for wrong passwords.
var errWrongPassword = errors.New("wrong user name or password")

// htpasswd checks passwords against a file that may change. It is safe for concurrent
// use.
type htpasswd struct {
	path     string
	log      *slog.Logger
	clock    func() time.Time
	failures *recent.Failures
	reloads  *reloads
	secret   [32]byte      // keys the hashes of remembered passwords; only in RAM
	slots    chan struct{} // one element per bcrypt computation under way
	waiting  atomic.Int64

	nextCheck atomic.Int64 // Unix nanoseconds
	current   atomic.Pointer[userFile]

	mu      sync.Mutex  // one reload at a time
	refused os.FileInfo // the last version of the file that was not accepted
	refusal error       // why
}

// userFile is one version of the file. When it is replaced, the passwords that were
// verified against it are forgotten.
type userFile struct {
	info     os.FileInfo
	users    map[string]user
	costs    []int // the cost of each user's hash, in the order of names
	verified *recent.Cache[*Identity]
}

type user struct {
	hash []byte
	id   *Identity
}

// newHTPasswd reads the file. Errors give the line and the user, and never a hash.
func newHTPasswd(path string, f *recent.Failures, reloads *reloads, o Options) (*htpasswd, error) {
	h := &htpasswd{
		path: path, log: o.Logger, clock: o.Clock, failures: f, reloads: reloads,
		// Passwords use all cores but one, because serving must go on while they are
		// hashed.
		slots: make(chan struct{}, max(runtime.GOMAXPROCS(0)-1, 1)),
	}
	if _, err := rand.Read(h.secret[:]); err != nil {
		return nil, err
	}
	file, err := h.load()
	if err != nil {
		return nil, err
	}
	h.current.Store(file)
	h.nextCheck.Store(o.Clock().Add(htpasswdCheck).UnixNano())
	return h, nil
}

// load reads the file as it is now. It gets the FileInfo before the bytes. So if the file
// is written in between, the next check sees a change.
func (h *htpasswd) load() (*userFile, error) {
	f, err := os.Open(h.path)
	if err != nil {
		return nil, fmt.Errorf("open htpasswd file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat htpasswd file: %w", err)
	}
	file := &userFile{info: info, verified: recent.NewCache[*Identity](verifiedMax)}
	if file.users, err = parseHTPasswd(f); err != nil {
		return file, fmt.Errorf("htpasswd file %s: %w", h.path, err)
	}
	var names []string
	for name := range file.users {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		cost, err := bcrypt.Cost(file.users[name].hash)
		if err != nil {
			return file, fmt.Errorf("htpasswd file %s: user %q: unreadable bcrypt cost", h.path, name)
		}
		file.costs = append(file.costs, cost)
	}
	return file, nil
}

// parseHTPasswd parses lines of the form user:hash. It skips empty lines and lines that
// begin with "#".
func parseHTPasswd(r io.Reader) (map[string]user, error) {
	users := map[string]user{}
	in := bufio.NewScanner(io.LimitReader(r, maxHTPasswdBytes+1))
	read := 0
	for n := 1; in.Scan(); n++ {
		if read += len(in.Bytes()) + 1; read > maxHTPasswdBytes {
			return nil, fmt.Errorf("line %d: the file has more than %d bytes", n, maxHTPasswdBytes)
		}
		line := strings.TrimSpace(in.Text())
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
		users[name] = user{[]byte(hash), &Identity{Name: name, Method: MethodHTPasswd}}
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
func (h *htpasswd) file() *userFile {
	now := h.clock().UnixNano()
	if due := h.nextCheck.Load(); now >= due && h.nextCheck.CompareAndSwap(due, now+int64(htpasswdCheck)) {
		_ = h.reload() // it was logged; the users before the change stay
	}
	return h.current.Load()
}

// reload reads the file if it has changed. If it cannot be used, it returns why, and logs
// that once for each change.
func (h *htpasswd) reload() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.current.Load()
	info, err := os.Stat(h.path)
	if err == nil && sameVersion(info, old.info) {
		h.accept()
		return nil
	}
	if err == nil && h.refused != nil && sameVersion(info, h.refused) {
		return h.refusal
	}
	file, err := h.load()
	if err != nil {
		var seen os.FileInfo = missingFile{}
		if file != nil {
			seen = file.info
		}
		if h.refused == nil || !sameVersion(seen, h.refused) {
			h.log.Error("htpasswd file not usable, the users before the change stay", "error", err)
			h.reloads.note(reloadUsers, h.path, err)
		}
		h.refused, h.refusal = seen, err
		return err
	}
	h.accept()
	h.current.Store(file)
	h.log.Info("htpasswd file read again", "path", h.path, "users", len(file.users))
	h.reloads.note(reloadUsers, h.path, nil)
	return nil
}

// accept forgets that a version of the file was refused.
func (h *htpasswd) accept() {
	h.refused, h.refusal = nil, nil
	h.reloads.stale.WithLabelValues(reloadUsers).Set(0)
}

// knows reports whether there is a user of that name.
func (h *htpasswd) knows(name string) bool {
	_, ok := h.file().users[name]
	return ok
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

// verify returns the user's identity. The error is errWrongPassword, or an *oci.Error
// TOOMANYREQUESTS with a *RetryError. The latter means that addr has failed too often or
// that too many logins are waiting.
func (h *htpasswd) verify(ctx context.Context, addr netip.Addr, name, password string) (*Identity, error) {
	key := h.key(name, password)
	if id, ok := h.file().verified.Get(key, h.clock()); ok {
		return id, nil
	}
	if err := h.checkBlocked(addr); err != nil {
		return nil, err
	}
	if err := h.acquire(ctx); err != nil {
		return nil, err
	}
	defer func() { <-h.slots }()
	// Two things may have changed while this login was waiting. The same credentials may
	// have been verified for a parallel request, or the address may have used up its
	// attempts.
	file := h.current.Load()
	if id, ok := file.verified.Get(key, h.clock()); ok {
		return id, nil
	}
	if err := h.checkBlocked(addr); err != nil {
		return nil, err
	}
	u, known := file.users[name]
	hash := u.hash
	if !known {
		hash = h.decoy(file, name)
	}
	err := bcrypt.CompareHashAndPassword(hash, []byte(password))
	now := h.clock()
	if err != nil || !known {
		h.failures.Add(addr, now)
		return nil, errWrongPassword
	}
	file.verified.Put(key, u.id, now.Add(verifiedTTL), now)
	return u.id, nil
}

func (h *htpasswd) checkBlocked(addr netip.Addr) error {
	wait := h.failures.Blocked(addr, h.clock())
	if wait == 0 {
		return nil
	}
	return &oci.Error{
		Code:    oci.CodeTooManyRequests,
		Message: "too many wrong passwords from your address; wait a minute",
		Err:     &RetryError{After: wait},
	}
}

// acquire waits until one hash may be computed.
func (h *htpasswd) acquire(ctx context.Context) error {
	if h.waiting.Add(1) > int64(cap(h.slots)*bcryptQueue) {
		h.waiting.Add(-1)
		return &oci.Error{
			Code:    oci.CodeTooManyRequests,
			Message: "too many logins at once; try again",
			Err:     &RetryError{After: time.Second},
		}
	}
	defer h.waiting.Add(-1)
	select {
	case h.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &oci.Error{Code: oci.CodeUnavailable, Message: "the login was given up", Err: context.Cause(ctx)}
	}
}

// key returns the key under which a verified password is remembered.
func (h *htpasswd) key(name, password string) recent.Key {
	mac := hmac.New(sha256.New, h.secret[:])
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(name)))
	mac.Write(n[:])
	io.WriteString(mac, name)
	io.WriteString(mac, password)
	return recent.Key(mac.Sum(nil))
}

// decoy returns a hash to compare an unknown user's password with, so that the check
// takes as long as for a known user. The cost of the hash is that of one of the users,
// and it is always the same for the same name. If the users' costs differ, an average or
// a changing cost would show that the user is unknown.
func (h *htpasswd) decoy(file *userFile, name string) []byte {
	sum := h.key(name, "")
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

// lookup returns a user's identity and hash. It needs no password.
func (h *htpasswd) lookup(name string) (*Identity, []byte, bool) {
	u, ok := h.file().users[name]
	return u.id, u.hash, ok
}

// RetryError is the cause of a TOOMANYREQUESTS error.
type RetryError struct {
	// After is how long the client should wait. It becomes the Retry-After header.
	After time.Duration
}

// Error implements error.
func (e *RetryError) Error() string { return "retry after " + e.After.String() }
