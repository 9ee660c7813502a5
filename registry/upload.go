package registry

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"example.org/slipway/catalog"
	"example.org/slipway/objstore"
	"example.org/slipway/oci"
)

// upload is a blob on its way in. While it is no larger than
// catalog.InlineMax its bytes are in RAM and end in the catalogue; beyond that
// they go to the object store as they come.
type upload struct {
	id, repo string

	// mu is held for the length of a request that writes; the others answer
	// that the upload is busy.
	mu   sync.Mutex
	size int64
	alg  string // of hash: "sha256" or "sha512"
	hash hash.Hash
	// hashing is closed when the piece that hashPiece handed over is in hash.
	hashing chan struct{}
	buf     []byte          // the bytes, while they are few
	obj     objstore.Upload // open during a request
	state   string          // of the object store's upload between requests
	gone    bool
	inRow   bool // nothing has come since the row was written
	// follower watches the bytes come in, nil if nobody does.
	follower Follower

	// guarded by uploads.mu
	client  netip.Addr // whose share it counts in; zero: nobody's
	saved   bool       // has a row in the catalogue
	touched time.Time
	// saving is closed when saveOpen, which holds mu for the length of a commit,
	// has let go of it; nil while it does not hold it.
	saving chan struct{}
}

// uploads are the uploads known in RAM. One that is not may still have a row in
// the catalogue, from before a restart or of an idle client.
type uploads struct {
	r    *Registry
	mu   sync.Mutex
	byID map[string]*upload
	// ofClient counts those in byID by client.
	ofClient map[netip.Addr]int
	// restoring is held from reading an upload's row until it is in byID. As a
	// row is deleted before the upload leaves byID, a row read under it is never
	// that of an upload that has ended. It is locked before mu.
	restoring sync.Mutex
	// timer saves uploads that stay open; see saveAfter.
	timer  *time.Timer
	closed bool
}

// saveAfter is how long an upload may be open before it gets a row in the
// catalogue. Most end sooner and never cost a write; one that a crash of the
// process cuts off in this time has acknowledged nothing but its own id.
const saveAfter = 100 * time.Millisecond

// idleAfter is how long a saved upload stays in RAM with nobody asking.
const idleAfter = 5 * time.Minute

func (us *uploads) init(r *Registry) {
	us.r = r
	us.byID = map[string]*upload{}
	us.ofClient = map[netip.Addr]int{}
}

// StartUpload implements oci.Writer.
func (r *Registry) StartUpload(ctx context.Context, repo string) (oci.UploadStatus, error) {
	if err := r.writable(); err != nil {
		return oci.UploadStatus{}, err
	}
	if err := oci.CheckName(repo); err != nil {
		return oci.UploadStatus{}, err
	}
	u := r.newUpload(repo)
	u.client = clientOf(ctx)
	if err := r.uploads.add(u); err != nil {
		return oci.UploadStatus{}, err
	}
	return oci.UploadStatus{ID: u.id}, nil
}

func (r *Registry) newUpload(repo string) *upload {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return &upload{id: hex.EncodeToString(id[:]), repo: repo, touched: r.opts.Clock()}
}

func (us *uploads) add(u *upload) error {
	us.mu.Lock()
	defer us.mu.Unlock()
	if len(us.byID) >= us.r.opts.MaxUploads {
		return oci.Errorf(oci.CodeTooManyRequests, "%d uploads are open; finish or cancel some first", len(us.byID))
	}
	if u.client.IsValid() {
		if n := us.ofClient[u.client]; n >= us.r.opts.MaxUploadsPerClient {
			return oci.Errorf(oci.CodeTooManyRequests, "%d uploads of this address are open; finish or cancel some first", n)
		}
		us.ofClient[u.client]++
	}
	us.byID[u.id] = u
	if us.timer == nil && !us.closed {
		us.timer = time.AfterFunc(saveAfter, us.saveOpen)
	}
	return nil
}

// find returns an upload of a repository, from the catalogue if need be.
func (us *uploads) find(ctx context.Context, repo, id string) (*upload, error) {
	u := us.inRAM(id)
	if u == nil {
		var err error
		if u, err = us.fromCatalog(ctx, repo, id); err != nil {
			return nil, err
		}
	}
	if u.repo != repo {
		return nil, uploadUnknown(repo, id)
	}
	return u, nil
}

func (us *uploads) inRAM(id string) *upload {
	us.mu.Lock()
	defer us.mu.Unlock()
	return us.byID[id]
}

func (us *uploads) fromCatalog(ctx context.Context, repo, id string) (*upload, error) {
	us.restoring.Lock()
	defer us.restoring.Unlock()
	if u := us.inRAM(id); u != nil {
		return u, nil
	}
	row, err := us.r.cat.Upload(ctx, repo, id)
	if errors.Is(err, catalog.ErrNotFound) {
		return nil, uploadUnknown(repo, id)
	}
	if err != nil {
		return nil, fmt.Errorf("look up upload %s: %w", id, err)
	}
	if row.Intent != "" { // kept for recovery only
		return nil, uploadUnknown(repo, id)
	}
	return us.restore(row)
}

func uploadUnknown(repo, id string) error {
	return oci.Errorf(oci.CodeBlobUploadUnknown, "repository %s has no upload %.40q; it ended, was cancelled or expired: begin again with POST", repo, id)
}

func (us *uploads) restore(row catalog.Upload) (*upload, error) {
	u := &upload{id: row.ID, repo: row.Repo, size: row.Size, state: row.State, buf: row.Content, inRow: true, saved: true, touched: us.r.opts.Clock()}
	if len(row.Hash) > 0 {
		alg, state, _ := bytes.Cut(row.Hash, []byte{'\n'})
		u.setHash(string(alg))
		if err := u.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
			return nil, fmt.Errorf("continue upload %s: %w", row.ID, err)
		}
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	if other := us.byID[u.id]; other != nil {
		return other, nil
	}
	us.byID[u.id] = u
	return u, nil
}

// algorithm returns a digest's algorithm; sha256 where there is no digest yet.
func algorithm(d oci.Digest) string {
	if strings.HasPrefix(string(d), "sha512:") {
		return "sha512"
	}
	return "sha256"
}

func (u *upload) setHash(alg string) { u.alg, u.hash = alg, newHash(alg) }

func newHash(alg string) hash.Hash {
	if alg == "sha512" {
		return sha512.New()
	}
	return sha256.New()
}

// acquire finds an upload and holds it for the caller alone.
func (us *uploads) acquire(ctx context.Context, repo, id string) (*upload, error) {
	if err := us.r.writable(); err != nil {
		return nil, err
	}
	for {
		u, err := us.find(ctx, repo, id)
		if err != nil {
			return nil, err
		}
		if !u.mu.TryLock() {
			saving := us.savingOf(u)
			if saving != nil {
				if err := await(ctx, saving); err != nil {
					return nil, err
				}
				continue
			}
			// saveOpen may have let go between the two looks.
			if u.mu.TryLock() {
				u.mu.Unlock()
				continue
			}
			return nil, &oci.Error{Code: oci.CodeBlobUploadInvalid, Status: http.StatusConflict, Message: "another request is writing to this upload; ask for its status and continue from there"}
		}
		if !u.gone {
			return u, nil
		}
		u.mu.Unlock() // it left RAM between find and here: look again
	}
}

func (us *uploads) savingOf(u *upload) <-chan struct{} {
	us.mu.Lock()
	defer us.mu.Unlock()
	return u.saving
}

// UploadStatus implements oci.Writer.
func (r *Registry) UploadStatus(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer u.mu.Unlock()
	defer r.letGo(u)
	return oci.UploadStatus{ID: id, Size: u.size}, nil
}

// letGo ends a request about an upload whose bytes are in the catalogue: there
// may be any number of these, which must not add up to much RAM. u.mu is held.
func (r *Registry) letGo(u *upload) {
	if u.inRow && len(u.buf) > 0 {
		r.finish(u)
	}
}

// AppendUpload implements oci.Writer.
func (r *Registry) AppendUpload(ctx context.Context, repo, id string, off, size int64, body io.Reader) (oci.UploadStatus, error) {
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer u.mu.Unlock()
	defer r.letGo(u)
	err = r.receive(ctx, u, off, size, body, "")
	if rangeErr := (*oci.Error)(nil); errors.As(err, &rangeErr) && rangeErr.Code == oci.CodeRangeInvalid {
		return oci.UploadStatus{ID: id, Size: u.size}, err
	}
	if !isStorageFull(err) && !isUnknown(err) {
		// What came is kept whether or not the request went wrong, so that the
		// client can go on from there.
		if saveErr := r.park(ctx, u); err == nil {
			err = saveErr
		}
	}
	if isStorageFull(err) || isUnknown(err) { // what came would only keep the disk full
		r.drop(ctx, u)
		return oci.UploadStatus{}, err
	}
	return oci.UploadStatus{ID: id, Size: u.size}, err
}

// park closes what the upload holds open and saves where it stands. It runs
// also when the client has gone, hence the context of its own.
func (r *Registry) park(ctx context.Context, u *upload) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if u.obj != nil {
		state, err := u.obj.Suspend(ctx)
		u.obj = nil
		if err != nil {
			r.drop(ctx, u)
			return storeError("keep the upload", err)
		}
		u.state = state
	}
	if err := r.save(ctx, u, ""); err != nil {
		return storeError("record the upload", err)
	}
	return nil
}

// row is the upload as the catalogue keeps it. u.mu is held.
func (u *upload) row(intent oci.Digest) (catalog.Upload, error) {
	row := catalog.Upload{ID: u.id, Repo: u.repo, Size: u.size, State: u.state, Content: u.buf, Intent: intent}
	if u.hash != nil {
		state, err := u.hash.(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			return row, err
		}
		row.Hash = append([]byte(u.alg+"\n"), state...)
	}
	return row, nil
}

func (r *Registry) save(ctx context.Context, u *upload, intent oci.Digest) error {
	row, err := u.row(intent)
	if err != nil {
		return err
	}
	if err := r.cat.SaveUploads(ctx, row); err != nil {
		return err
	}
	u.inRow = true
	r.uploads.mu.Lock()
	u.saved, u.touched = true, r.opts.Clock()
	r.uploads.mu.Unlock()
	return nil
}

// storeError turns a failure of the store or catalogue into what a client sees.
func storeError(doing string, err error) error {
	var known *oci.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, objstore.ErrNoSpace) || isFull(err):
		return &oci.Error{Code: oci.CodeUnknown, Status: http.StatusInsufficientStorage,
			Message: "the registry's storage is full; nothing was stored by this request", Err: fmt.Errorf("%s: %w", doing, err)}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isStorageFull recognises what storeError made of a full store.
func isStorageFull(err error) bool {
	var e *oci.Error
	return errors.As(err, &e) && e.Status == http.StatusInsufficientStorage
}

// isUnknown recognises that the store has lost an upload's bytes.
func isUnknown(err error) bool { return oci.HasCode(err, oci.CodeBlobUploadUnknown) }

// bufferPool holds the buffers between socket and store: 256 KiB, so that the
// system calls weigh little beside the hash, and many uploads at once take
// little memory.
var bufferPool = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// checkOffset refuses a chunk that does not begin where the upload stands.
func (u *upload) checkOffset(off int64) error {
	if off != oci.AtEnd && off != u.size {
		return oci.Errorf(oci.CodeRangeInvalid, "the chunk begins at byte %d, the upload stands at %d", off, u.size)
	}
	return nil
}

// receive adds a request's body to the upload. u.mu is held. want is the digest
// the upload is to have, where it is known, so that the right sum is computed.
func (r *Registry) receive(ctx context.Context, u *upload, off, size int64, body io.Reader, want oci.Digest) error {
	if err := u.checkOffset(off); err != nil {
		return err
	}
	if body == nil || size == 0 {
		return checkLength(size, 0)
	}
	if u.hash == nil {
		u.setHash(algorithm(want))
	}
	u.inRow = false
	return r.copyBody(ctx, u, size, body)
}

func (r *Registry) copyBody(ctx context.Context, u *upload, size int64, body io.Reader) error {
	var bufs [2][]byte // one is filled and stored while the other is hashed
	if size >= 0 && size <= catalog.InlineMax {
		bufs[0] = make([]byte, size)
		bufs[1] = bufs[0]
	} else {
		for i := range bufs {
			p := bufferPool.Get().(*[]byte)
			defer bufferPool.Put(p)
			bufs[i] = *p
		}
		defer u.hashed() // before the buffers go back
	}
	var got int64
	for i := 0; ; i++ {
		buf := bufs[i%2]
		if size >= 0 && got == size {
			return checkEnd(body, size)
		}
		if size >= 0 && size-got < int64(len(buf)) {
			buf = buf[:size-got]
		}
		n, err := body.Read(buf)
		if n > 0 {
			got += int64(n)
			if err := r.writeUpload(ctx, u, buf[:n], size-got); err != nil {
				return storeError("store the upload", err)
			}
		}
		switch {
		case err == io.EOF:
			return checkLength(size, got)
		case err != nil:
			return bodyError(err, size, got)
		}
	}
}

func checkLength(size, got int64) error {
	if size > 0 && got != size {
		return oci.Errorf(oci.CodeSizeInvalid, "the body has %d bytes, %d were announced", got, size)
	}
	return nil
}

// checkEnd makes sure that nothing follows the announced bytes, which a client
// would believe to be stored.
func checkEnd(body io.Reader, size int64) error {
	var one [1]byte
	for {
		switch n, err := body.Read(one[:]); {
		case n > 0:
			return oci.Errorf(oci.CodeSizeInvalid, "the body has more than the %d bytes that were announced", size)
		case err == io.EOF:
			return nil
		case err != nil:
			return bodyError(err, size, size)
		}
	}
}

// bodyError describes a body that broke off.
func bodyError(err error, size, got int64) error {
	var known *oci.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return oci.Errorf(oci.CodeSizeInvalid, "the body ended after %d of %d bytes", got, size)
	}
	return &oci.Error{Code: oci.CodeBlobUploadInvalid, Message: fmt.Sprintf("the body broke off after %d bytes", got), Err: err}
}

// writeUpload adds bytes to the upload, moving it to the object store when it
// gets too large for the catalogue. rest is how many bytes are expected behind
// p, or negative.
func (r *Registry) writeUpload(ctx context.Context, u *upload, p []byte, rest int64) error {
	if u.obj == nil && u.state == "" && u.size+int64(len(p))+max(rest, 0) <= catalog.InlineMax {
		u.buf = append(u.buf, p...)
		u.size += int64(len(p))
		u.hash.Write(p)
		return nil
	}
	if err := r.openObject(ctx, u, int64(len(p))+rest, rest >= 0); err != nil {
		return err
	}
	before := u.obj.Size()
	_, err := u.obj.Write(p)
	n := u.obj.Size() - before // after an error, what of p is in the upload
	u.size += n
	u.hashPiece(p[:n], rest == 0)
	r.follow(u, p[:n])
	return err
}

// openObject makes sure the upload's object is open for writing.
func (r *Registry) openObject(ctx context.Context, u *upload, more int64, known bool) (err error) {
	if u.obj != nil {
		return nil
	}
	if u.state != "" {
		u.obj, err = r.store.Resume(ctx, u.state, u.size)
		if errors.Is(err, objstore.ErrNotExist) { // the caller drops it
			return uploadUnknown(u.repo, u.id)
		}
		return err
	}
	hint := int64(-1)
	if known {
		hint = u.size + more
	}
	obj, err := r.store.NewUpload(ctx, hint)
	if err != nil {
		return err
	}
	if len(u.buf) > 0 {
		if _, err := obj.Write(u.buf); err != nil {
			return errors.Join(err, obj.Cancel(ctx))
		}
		r.follow(u, u.buf)
	}
	u.obj, u.buf = obj, nil
	return nil
}

// CancelUpload implements oci.Writer.
func (r *Registry) CancelUpload(ctx context.Context, repo, id string) error {
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return err
	}
	defer u.mu.Unlock()
	r.drop(ctx, u)
	return nil
}

// drop ends an upload and frees what it holds. u.mu is held. What cannot be
// freed now is found by the sweep of old uploads.
func (r *Registry) drop(ctx context.Context, u *upload) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	u.gone = true
	r.uploads.mu.Lock()
	saved := u.saved
	r.uploads.mu.Unlock()
	var errs []error
	if u.obj != nil {
		errs = append(errs, u.obj.Cancel(ctx))
		u.obj = nil
	}
	if u.state != "" {
		errs = append(errs, r.store.Abandon(ctx, u.state))
	}
	if saved {
		errs = append(errs, r.cat.DeleteUploads(ctx, u.id))
	}
	r.finish(u) // last: while it is in RAM nobody restores it from its row
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("free an upload", "upload", u.id, "repo", u.repo, "err", err)
	}
}
