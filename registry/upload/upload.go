// Package upload receives blobs: from the first byte, over as many requests and restarts
// as a client needs, until the content and its row are durable. If several replicas share
// a catalogue, requests claim the upload that they continue.
//
// The bytes of small uploads are in RAM and end up in the catalogue. The bytes of larger
// uploads go to the object store as they come. registry/DESIGN.md describes the protocol
// between uploads and the collector, and what a crash leaves behind.
package upload

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/replica"
	"example.org/slipway/registry/storage"
	"example.org/slipway/registry/verify"
)

// upload is a blob on its way in. While it is no larger than catalog.InlineMax, its bytes
// are in RAM and end up in the catalogue. The bytes of larger uploads go to the object
// store as they come.
type upload struct {
	us       *Uploads
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
	// want is the digest under which the present request commits the upload, if it
	// commits it. only, unless empty, is the only digest that the object store's upload
	// can have.
	want, only oci.Digest
	// claim is the claim of the present request, if replicas share the catalogue. private
	// says that only this request knows the upload.
	claim   *claim
	private bool
	// follower watches the bytes come in. It is nil if nobody does.
	follower Follower

	// guarded by Uploads.mu
	client  netip.Addr // the client whose share it counts in; zero: none
	saved   bool       // it has a row in the catalogue
	touched time.Time
	// saving is closed when saveOpen, which holds mu for the duration of a commit, has
	// released it. It is nil while saveOpen does not hold mu.
	saving chan struct{}
}

// Options are the options of New.
type Options struct {
	Logger *slog.Logger
	// MaxUploads is how many uploads may be open in RAM at once. MaxPerClient is how many
	// of them may belong to one client address (see oci.Actor).
	MaxUploads, MaxPerClient int
	// MaxAge is how long an abandoned upload is kept.
	MaxAge time.Duration
	// Tap watches blobs while they come in; default: none.
	Tap Tap
	// Pushed is called when an upload has become a blob of a repository.
	Pushed func(ctx context.Context, repo string, d oci.Descriptor) error
	// Relink makes a content that came back visible in every repository with a manifest
	// that needs it.
	Relink func(ctx context.Context, d oci.Digest) error
	// Forget makes RAM forget what it knows of a blob of a repository.
	Forget func(repo string, d oci.Digest)
}

// Uploads are the uploads known in RAM. Other uploads may still have a row in the
// catalogue, from before a restart or from an idle client.
type Uploads struct {
	cat     *catalog.Catalog
	store   objstore.Store
	storage *storage.Storage
	replica *replica.Replica
	opts    Options
	log     *slog.Logger
	// keyed is store if it has that ability, and otherwise nil.
	keyed objstore.KeyedUploader

	background sync.WaitGroup
	janitor    janitor

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

// New returns the uploads of a registry. Recover settles what the last run left of them.
func New(cat *catalog.Catalog, store objstore.Store, s *storage.Storage, p *replica.Replica, o Options) *Uploads {
	us := &Uploads{cat: cat, store: store, storage: s, replica: p, opts: o, log: o.Logger,
		byID: map[string]*upload{}, ofClient: map[netip.Addr]int{}}
	us.janitor.us = us
	us.keyed, _ = objstore.As[objstore.KeyedUploader](store)
	return us
}

// Close saves the state of open uploads, which may be continued after a restart, but not
// in this process.
func (us *Uploads) Close(ctx context.Context) error {
	us.close()
	us.background.Wait()
	err := us.saveAll(ctx)
	us.unfollow()
	return err
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

// Start begins an upload of a blob to a repository; see oci.Writer.
func (us *Uploads) Start(ctx context.Context, repo string) (oci.UploadStatus, error) {
	if err := us.storage.Writable(); err != nil {
		return oci.UploadStatus{}, err
	}
	if err := errors.Join(oci.CheckName(repo), us.storage.Room()); err != nil {
		return oci.UploadStatus{}, err
	}
	u := us.newUpload(repo)
	u.client = clientOf(ctx)
	u.saved = us.replica.Shared // it gets its row in a moment
	if err := us.add(u); err != nil {
		return oci.UploadStatus{}, err
	}
	if us.replica.Shared { // the next request may come to another replica
		if err := us.cat.Uploads.Save(ctx, catalog.Upload{ID: u.id, Repo: repo}); err != nil {
			u.finish()
			return oci.UploadStatus{}, storage.ClientError("begin an upload", err)
		}
	}
	return oci.UploadStatus{ID: u.id}, nil
}

func (us *Uploads) newUpload(repo string) *upload {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return &upload{us: us, id: hex.EncodeToString(id[:]), repo: repo, touched: us.replica.Now()}
}

func (us *Uploads) add(u *upload) error {
	us.mu.Lock()
	defer us.mu.Unlock()
	if len(us.byID) >= us.opts.MaxUploads {
		return oci.Errorf(oci.CodeTooManyRequests, "%d uploads are open; finish or cancel some first", len(us.byID))
	}
	if u.client.IsValid() {
		if n := us.ofClient[u.client]; n >= us.opts.MaxPerClient {
			return oci.Errorf(oci.CodeTooManyRequests, "%d uploads of this address are open; finish or cancel some first", n)
		}
		us.ofClient[u.client]++
	}
	us.byID[u.id] = u
	if us.timer == nil && !us.closed && !us.replica.Shared {
		us.timer = time.AfterFunc(saveAfter, us.saveOpen)
	}
	return nil
}

// find returns an upload of a repository. It reads the upload from the catalogue if
// necessary.
func (us *Uploads) find(ctx context.Context, repo, id string) (*upload, error) {
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

func (us *Uploads) inRAM(id string) *upload {
	us.mu.Lock()
	defer us.mu.Unlock()
	return us.byID[id]
}

func (us *Uploads) fromCatalog(ctx context.Context, repo, id string) (*upload, error) {
	us.restoring.Lock()
	defer us.restoring.Unlock()
	if u := us.inRAM(id); u != nil {
		return u, nil
	}
	row, err := us.cat.Uploads.Get(ctx, repo, id)
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

func (us *Uploads) restore(row catalog.Upload) (*upload, error) {
	u := &upload{us: us, id: row.ID, repo: row.Repo, saved: true, touched: us.replica.Now()}
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

func (u *upload) setHash(alg string) { u.alg, u.hash = alg, verify.NewHash(oci.Digest(alg+":")) }

// acquire finds an upload and locks it for the caller.
func (us *Uploads) acquire(ctx context.Context, repo, id string) (*upload, error) {
	if err := us.storage.Writable(); err != nil {
		return nil, err
	}
	if us.replica.Shared {
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
				if err := storage.Await(ctx, saving); err != nil {
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

func (us *Uploads) savingOf(u *upload) <-chan struct{} {
	us.mu.Lock()
	defer us.mu.Unlock()
	return u.saving
}

// Status returns where an upload stands.
func (us *Uploads) Status(ctx context.Context, repo, id string) (oci.UploadStatus, error) {
	if us.replica.Shared && us.storage.Writable() == nil {
		if size, ok, err := us.statusShared(ctx, repo, id); ok || err != nil {
			return oci.UploadStatus{ID: id, Size: size}, err
		}
	}
	u, err := us.acquire(ctx, repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer u.release()
	return oci.UploadStatus{ID: id, Size: u.size}, nil
}

// letGo ends a request about an upload whose bytes are in the catalogue. There may be any
// number of these uploads, and they must not take up much RAM together. u.mu is held.
func (u *upload) letGo() {
	if u.inRow && len(u.buf) > 0 {
		u.finish()
	}
}

// Append adds bytes to an upload at an offset.
func (us *Uploads) Append(ctx context.Context, repo, id string, off, size int64, body io.Reader) (oci.UploadStatus, error) {
	u, err := us.acquire(ctx, repo, id)
	if err != nil {
		return oci.UploadStatus{}, err
	}
	defer u.release()
	err = u.receive(ctx, off, size, body, "")
	if rangeErr := (*oci.Error)(nil); errors.As(err, &rangeErr) && rangeErr.Code == oci.CodeRangeInvalid {
		return oci.UploadStatus{ID: id, Size: u.size}, err
	}
	if !isStorageFull(err) && !isUnknown(err) {
		// The received bytes are kept even if the request failed, so that the client can
		// continue from there.
		if saveErr := u.park(ctx); err == nil {
			err = saveErr
		}
	}
	if isStorageFull(err) || isUnknown(err) { // the received bytes would only keep the disk full
		u.drop(ctx)
		return oci.UploadStatus{}, err
	}
	return oci.UploadStatus{ID: id, Size: u.size}, err
}

// park closes what the upload holds open and saves where the upload stands. It also runs
// when the client has gone, so it uses a separate context.
func (u *upload) park(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if u.obj != nil {
		state, err := u.obj.Suspend(ctx)
		u.obj = nil
		if err != nil && u.claim != nil { // the upload stands where the request found it
			u.unfollow()
			return storage.ClientError("keep the upload", err)
		}
		if err != nil {
			u.drop(ctx)
			return storage.ClientError("keep the upload", err)
		}
		u.state = state
	}
	if err := u.save(ctx, ""); err != nil {
		return storage.ClientError("record the upload", err)
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

func (u *upload) save(ctx context.Context, intent oci.Digest) error {
	row, err := u.row(intent)
	if err != nil {
		return err
	}
	if u.claim != nil {
		row.Owner = u.us.replica.Owner // a zero Until ends the claim
	}
	if err := u.us.cat.Uploads.Save(ctx, row); err != nil {
		return err
	}
	if u.claim != nil {
		u.claim.settled = true
	}
	u.inRow = true
	u.us.mu.Lock()
	u.saved, u.touched = true, u.us.replica.Now()
	u.us.mu.Unlock()
	return nil
}

// writeUpload adds bytes to the upload. It moves the upload to the object store when the
// upload becomes too large for the catalogue. rest is how many bytes are expected after
// p, or negative.
func (u *upload) writeUpload(ctx context.Context, p []byte, rest int64) error {
	if u.obj == nil && u.state == "" && u.size+int64(len(p))+max(rest, 0) <= catalog.InlineMax {
		u.buf = append(u.buf, p...)
		u.size += int64(len(p))
		u.hash.Write(p)
		return nil
	}
	if err := u.openObject(ctx, int64(len(p))+rest, rest >= 0); err != nil {
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
	u.follow(p[:n])
	return err
}

// openObject makes sure the upload's object is open for writing.
func (u *upload) openObject(ctx context.Context, more int64, known bool) (err error) {
	if u.obj != nil {
		return nil
	}
	if u.state != "" {
		u.obj, err = u.us.store.Resume(ctx, u.state, u.size)
		if errors.Is(err, objstore.ErrNotExist) { // the caller drops it
			return uploadUnknown(u.repo, u.id)
		}
		return err
	}
	hint := int64(-1)
	if known {
		hint = u.size + more
	}
	obj, err := u.newObject(ctx, hint)
	if err != nil {
		return err
	}
	if len(u.buf) > 0 {
		if _, err := obj.Write(u.buf); err != nil {
			return errors.Join(err, obj.Cancel(ctx))
		}
		u.follow(u.buf)
	}
	u.obj, u.buf = obj, nil
	return nil
}

// newObject begins the object of an upload. If the store supports that and the key is
// known, the object begins under its final key.
func (u *upload) newObject(ctx context.Context, hint int64) (objstore.Upload, error) {
	if u.us.keyed == nil || u.want == "" || u.hash != nil && u.alg != verify.Algorithm(u.want) {
		return u.us.store.NewUpload(ctx, hint)
	}
	obj, err := u.us.keyed.NewUploadFor(ctx, storage.BlobKey(u.want), hint)
	if err == nil {
		u.only = u.want
	}
	return obj, err
}

// Cancel ends an upload.
func (us *Uploads) Cancel(ctx context.Context, repo, id string) error {
	u, err := us.acquire(ctx, repo, id)
	if err != nil {
		return err
	}
	defer u.release()
	u.drop(ctx)
	return nil
}

// drop ends an upload and frees what it holds. u.mu is held. The sweep of old uploads
// finds what cannot be freed now.
func (u *upload) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	u.gone = true
	u.us.mu.Lock()
	saved := u.saved
	u.us.mu.Unlock()
	var errs []error
	if !u.stillClaimed(ctx, saved) { // whoever has it uses what is in the store
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
		errs = append(errs, u.us.store.Abandon(ctx, u.state))
	}
	if saved {
		errs = append(errs, u.us.cat.Uploads.Delete(ctx, u.id))
	}
	u.finish() // last, because nobody restores it from its row while it is in RAM
	if err := errors.Join(errs...); err != nil {
		u.us.log.Warn("free an upload", "upload", u.id, "repo", u.repo, "err", err)
	}
}

// isStorageFull reports whether an error is what ClientError makes of a full store.
func isStorageFull(err error) bool {
	var e *oci.Error
	return errors.As(err, &e) && e.Status == http.StatusInsufficientStorage
}

// isUnknown reports whether an error says that the store has lost an upload's bytes.
func isUnknown(err error) bool { return oci.HasCode(err, oci.CodeBlobUploadUnknown) }

// Count returns how many uploads are in RAM.
func (us *Uploads) Count() int64 {
	us.mu.Lock()
	defer us.mu.Unlock()
	return int64(len(us.byID))
}
