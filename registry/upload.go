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
	"net/netip"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
)

// upload is a blob on its way in. While it is no larger than catalog.InlineMax, its bytes
// are in RAM and end up in the catalogue. The bytes of larger uploads go to the object
// store as they come.
type upload struct {
	id, repo string

	// mu is held for the duration of a request that writes. Other requests get the answer
	// that the upload is busy.
	mu   sync.Mutex
	size int64
	alg  string // the algorithm of hash: "sha256" or "sha512"
	hash hash.Hash
	// hashing is closed when the piece that hashPiece handed over is in hash.
	hashing chan struct{}
	buf     []byte          // the bytes, while they are few
	obj     objstore.Upload // open during a request
	state   string          // the state of the object store's upload between requests
	tag     string          // the tag of the object, once it is committed
	gone    bool
	inRow   bool // no bytes have come since the row was written
	// want is the digest that the present request commits the upload as, if it commits
	// it. only, unless empty, is the only digest that the object store's upload can have.
	want, only oci.Digest
	// claim is the claim of the present request, if replicas share the catalogue. private
	// says that only this request knows the upload.
	claim   *claim
	private bool
	// follower watches the bytes come in. It is nil if nobody does.
	follower Follower

	// guarded by uploads.mu
	client  netip.Addr // the client whose share it counts in; zero: none
	saved   bool       // it has a row in the catalogue
	touched time.Time
	// saving is closed when saveOpen, which holds mu for the duration of a commit, has
	// released it. It is nil while saveOpen does not hold mu.
	saving chan struct{}
}

// uploads are the uploads known in RAM. Other uploads may still have a row in the
// catalogue, from before a restart or from an idle client.
type uploads struct {
	r    *Registry
	mu   sync.Mutex
	byID map[string]*upload
	// ofClient counts the uploads in byID by client.
	ofClient map[netip.Addr]int
	// restoring is held from reading an upload's row until the upload is in byID. A row
	// is deleted before its upload leaves byID, so a row that was read under restoring
	// never belongs to an upload that has ended. restoring is locked before mu.
	restoring sync.Mutex
	// timer saves uploads that stay open; see saveAfter.
	timer  *time.Timer
	closed bool
}

// saveAfter is how long an upload may be open before it gets a row in the catalogue. Most
// uploads end sooner and never cost a write. If a crash of the process cuts off an upload
// in this time, only the upload's id has been acknowledged.
const saveAfter = 100 * time.Millisecond

// idleAfter is how long a saved upload stays in RAM without a request. idleShared is the
// same for an upload that may have ended at another replica.
const (
	idleAfter  = 5 * time.Minute
	idleShared = time.Minute
)

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
	if err := errors.Join(oci.CheckName(repo), r.room()); err != nil {
		return oci.UploadStatus{}, err
	}
	u := r.newUpload(repo)
	u.client = clientOf(ctx)
	u.saved = r.replica != nil // it gets its row in a moment
	if err := r.uploads.add(u); err != nil {
		return oci.UploadStatus{}, err
	}
	if r.replica != nil { // the next request may come to another replica
		if err := r.cat.Uploads.Save(ctx, catalog.Upload{ID: u.id, Repo: repo}); err != nil {
			r.finish(u)
			return oci.UploadStatus{}, ClientError("begin an upload", err)
		}
	}
	return oci.UploadStatus{ID: u.id}, nil
}

func (r *Registry) newUpload(repo string) *upload {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return &upload{id: hex.EncodeToString(id[:]), repo: repo, touched: r.now()}
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
	if us.timer == nil && !us.closed && us.r.replica == nil {
		us.timer = time.AfterFunc(saveAfter, us.saveOpen)
	}
	return nil
}

// find returns an upload of a repository. It reads the upload from the catalogue if
// necessary.
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
	row, err := us.r.cat.Uploads.Get(ctx, repo, id)
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
	u := &upload{id: row.ID, repo: row.Repo, saved: true, touched: us.r.now()}
	if err := u.load(row); err != nil {
		return nil, err
	}
	us.mu.Lock()
	defer us.mu.Unlock()
	if other := us.byID[u.id]; other != nil {
		return other, nil
	}
	us.byID[u.id] = u
	return u, nil
}

// load sets the upload to the state in its row. A follower that followed other bytes is
// ended.
func (u *upload) load(row catalog.Upload) error {
	if u.size != row.Size || u.state != row.State {
		u.unfollow()
	}
	u.size, u.state, u.buf, u.inRow = row.Size, row.State, row.Content, true
	u.hash, u.alg, u.only = nil, "", ""
	if len(row.Hash) == 0 {
		return nil
	}
	head, state, _ := bytes.Cut(row.Hash, []byte{'\n'})
	alg, only, _ := strings.Cut(string(head), " ")
	u.setHash(alg)
	u.only = oci.Digest(only)
	if err := u.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
		return fmt.Errorf("continue upload %s: %w", row.ID, err)
	}
	return nil
}

// algorithm returns a digest's algorithm, or sha256 if there is no digest yet.
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

// acquire finds an upload and locks it for the caller.
func (us *uploads) acquire(ctx context.Context, repo, id string) (*upload, error) {
	if err := us.r.writable(); err != nil {
		return nil, err
	}
	if us.r.replica != nil {
		return us.claim(ctx, repo, id)
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
			// saveOpen may have released it between the two looks.
			if u.mu.TryLock() {
				u.mu.Unlock()
				continue
			}
			return nil, uploadBusy()
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
	if r.replica != nil && r.writable() == nil {
		if size, ok, err := r.uploads.statusShared(ctx, repo, id); ok || err != nil {
			return oci.UploadStatus{ID: id, Size: size}, err
		}
	}
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer r.release(u)
	return oci.UploadStatus{ID: id, Size: u.size}, nil
}

// letGo ends a request about an upload whose bytes are in the catalogue. There may be any
// number of these uploads, and they must not take up much RAM together. u.mu is held.
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
	defer r.release(u)
	err = r.receive(ctx, u, off, size, body, "")
	if rangeErr := (*oci.Error)(nil); errors.As(err, &rangeErr) && rangeErr.Code == oci.CodeRangeInvalid {
		return oci.UploadStatus{ID: id, Size: u.size}, err
	}
	if !isStorageFull(err) && !isUnknown(err) {
		// The received bytes are kept even if the request failed, so that the client can
		// continue from there.
		if saveErr := r.park(ctx, u); err == nil {
			err = saveErr
		}
	}
	if isStorageFull(err) || isUnknown(err) { // the received bytes would only keep the disk full
		r.drop(ctx, u)
		return oci.UploadStatus{}, err
	}
	return oci.UploadStatus{ID: id, Size: u.size}, err
}

// park closes what the upload holds open and saves where the upload stands. It also runs
// when the client has gone, so it uses a separate context.
func (r *Registry) park(ctx context.Context, u *upload) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if u.obj != nil {
		state, err := u.obj.Suspend(ctx)
		u.obj = nil
		if err != nil && u.claim != nil { // the upload stands where the request found it
			u.unfollow()
			return ClientError("keep the upload", err)
		}
		if err != nil {
			r.drop(ctx, u)
			return ClientError("keep the upload", err)
		}
		u.state = state
	}
	if err := r.save(ctx, u, ""); err != nil {
		return ClientError("record the upload", err)
	}
	return nil
}

// row returns the upload in the form in which the catalogue keeps it. u.mu is held.
func (u *upload) row(intent oci.Digest) (catalog.Upload, error) {
	row := catalog.Upload{ID: u.id, Repo: u.repo, Size: u.size, State: u.state, Content: u.buf, Intent: intent}
	if u.hash != nil {
		state, err := u.hash.(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			return row, err
		}
		head := u.alg
		if u.only != "" {
			head += " " + string(u.only)
		}
		row.Hash = append([]byte(head+"\n"), state...)
	}
	return row, nil
}

func (r *Registry) save(ctx context.Context, u *upload, intent oci.Digest) error {
	row, err := u.row(intent)
	if err != nil {
		return err
	}
	if u.claim != nil {
		row.Owner = r.replica.owner // a zero Until ends the claim
	}
	if err := r.cat.Uploads.Save(ctx, row); err != nil {
		return err
	}
	if u.claim != nil {
		u.claim.settled = true
	}
	u.inRow = true
	r.uploads.mu.Lock()
	u.saved, u.touched = true, r.now()
	r.uploads.mu.Unlock()
	return nil
}

// writeUpload adds bytes to the upload. It moves the upload to the object store when the
// upload becomes too large for the catalogue. rest is how many bytes are expected after
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
	if u.lostClaim() {
		return uploadBusy()
	}
	before := u.obj.Size()
	_, err := u.obj.Write(p)
	n := u.obj.Size() - before // after an error, the part of p that is in the upload
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
	obj, err := r.newObject(ctx, u, hint)
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

// newObject begins the object of an upload. It begins it under its final key, if the
// store supports that and the key is known.
func (r *Registry) newObject(ctx context.Context, u *upload, hint int64) (objstore.Upload, error) {
	if r.keyed == nil || u.want == "" || u.hash != nil && u.alg != algorithm(u.want) {
		return r.store.NewUpload(ctx, hint)
	}
	obj, err := r.keyed.NewUploadFor(ctx, BlobKey(u.want), hint)
	if err == nil {
		u.only = u.want
	}
	return obj, err
}

// CancelUpload implements oci.Writer.
func (r *Registry) CancelUpload(ctx context.Context, repo, id string) error {
	u, err := r.uploads.acquire(ctx, repo, id)
	if err != nil {
		return err
	}
	defer r.release(u)
	r.drop(ctx, u)
	return nil
}

// drop ends an upload and frees what it holds. u.mu is held. The sweep of old uploads
// finds what cannot be freed now.
func (r *Registry) drop(ctx context.Context, u *upload) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	u.gone = true
	r.uploads.mu.Lock()
	saved := u.saved
	r.uploads.mu.Unlock()
	var errs []error
	if !r.stillClaimed(ctx, u, saved) { // whoever has it uses what is in the store
		if u.obj != nil {
			_, err := u.obj.Suspend(ctx)
			errs, u.obj = append(errs, err), nil
		}
		u.state, saved = "", false
	}
	if u.obj != nil {
		errs = append(errs, u.obj.Cancel(ctx))
		u.obj = nil
	}
	if u.state != "" {
		errs = append(errs, r.store.Abandon(ctx, u.state))
	}
	if saved {
		errs = append(errs, r.cat.Uploads.Delete(ctx, u.id))
	}
	r.finish(u) // last, because nobody restores it from its row while it is in RAM
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("free an upload", "upload", u.id, "repo", u.repo, "err", err)
	}
}
