// Package s3store keeps objects in a bucket of S3 or of a server that speaks its
// protocol, such as Ceph's RADOS gateway.
//
// The object of key a/b/c is the bucket's object prefix/a/b/c, whole and as it is,
// so that other tools find it. Everything of unfinished uploads is below
// prefix/slipway/uploads/, a directory that keys may not name.
//
// # Uploads
//
// S3 cannot append, rename or read the parts of an unfinished multipart upload, and the
// key of an upload is often known only at its end, because it is the digest. Hence bytes
// are collected in RAM up to one part, and then become
//
//	one part or less             one PutObject to the key, at Commit
//	more, key unknown            each full part is an object slipway/uploads/<id>/<n>-<writer>,
//	                             at Commit copied by the server into a multipart upload of the key
//	more, key known              parts of a multipart upload of the key (NewUploadFor)
//
// Suspend writes one object slipway/uploads/<id>/state-<writer>-<bytes> with the list of
// parts and the bytes that do not fill a part yet. Resume reads it, in this process or
// another one. No writer overwrites what another writer may still refer to. Each Resume
// makes a new writer, so that a process that lost an upload to another one cannot change
// its bytes. An upload whose key is known can be resumed only at a size within its last
// part or at the end of a part. Any other upload can be resumed at any size.
//
// # Memory
//
// An upload takes RAM as bytes come: at most one part that fills up and two parts that
// are being sent. When all uploads together may take Options.Memory, further uploads get
// parts of 5 MiB, and send only one at a time. An object has at most 10,000 parts: parts
// grow with the expected size, and every 2,000 parts.
//
// # Durability and consistency
//
// An object is durable when the server has answered 200 with the expected ETag, or when a
// HEAD has shown it with its size. Then it is visible to everybody, and whole. The
// listing may lag behind without harm: only List and SweepUploads read it, and a sweep
// takes only uploads of which nothing is recent.
//
// A conditional Put needs a server that honours If-None-Match, which New finds out with
// the object slipway/uploads/probe. If the server does not, Put first checks and then
// writes, so two Puts at the same moment can both succeed. Callers that need more use the
// catalogue.
//
// # Errors
//
// minio's own retries are off. Package remote repeats operations that may be repeated.
// Options.Repeat repeats the requests inside an upload, because only the upload has their
// bytes.
package s3store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"example.org/slipway/registry/objstore"
)

const (
	// uploadDir is where unfinished uploads are, below the prefix.
	uploadDir = "slipway/uploads/"
	probeKey  = uploadDir + "probe"
	// minPart is S3's smallest part of a multipart upload, except the last, in bytes.
	minPart = 5 << 20
	// defaultPart is the size of parts, in bytes. With larger parts, one more request
	// costs little compared with the transfer.
	defaultPart = 16 << 20
	// defaultMemory is Options.Memory when it is zero, in bytes.
	defaultMemory = 256 << 20
	// defaultStall is Options.StallTimeout when it is zero.
	defaultStall = time.Minute
	// seenLately is how long an answer counts as proof that the bucket exists.
	seenLately = 10 * time.Second
	// maxSingleCopy is the largest object that S3 copies by one request, in bytes.
	maxSingleCopy = 5 << 30
	// conflictTries is how often a conditional Put that met another one is tried.
	conflictTries = 5
)

// Options are the options of a Store. Endpoint and Bucket are required.
type Options struct {
	// Endpoint is the host or host:port of the server. It may also be a URL, whose scheme
	// then overrides Secure.
	Endpoint string
	// Bucket holds the objects. It must exist.
	Bucket string
	// Prefix is the directory in the bucket. Default "": the whole bucket.
	Prefix string
	// Region is the bucket's region. Default: what the server says, or us-east-1 if it is
	// not Amazon.
	Region string

	// Credentials says where the credentials come from. Default: AccessKey if it is set,
	// else the environment, the shared file, the cloud.
	Credentials Source
	// AccessKey, SecretKey and SessionToken are static credentials.
	AccessKey, SecretKey, SessionToken string
	// CredentialsFile and Profile say where FromFile reads. Default: as AWS' tools.
	CredentialsFile, Profile string

	// Secure says to use TLS.
	Secure bool
	// CAFile holds additional certificate authorities, in PEM.
	CAFile string
	// SkipVerify accepts any certificate: for tests.
	SkipVerify bool
	// PathStyle puts the bucket into the path of URLs. By default the bucket is in the
	// host name at Amazon and Google, and in the path elsewhere.
	PathStyle bool

	// Encrypt is "", "AES256" (the server's keys) or "aws:kms".
	Encrypt string
	// KMSKeyID is the key for aws:kms. Default: the bucket's.
	KMSKeyID string
	// StorageClass is the storage class of new objects. Default: the bucket's.
	StorageClass string

	// PartSize is the size of a part of large uploads, in bytes. Default 16 MiB, at
	// least 5 MiB.
	PartSize int64
	// Memory is how many bytes all uploads together may take before they get smaller
	// parts. Default 256 MiB.
	Memory int64
	// StallTimeout is how long the server may accept no byte of a request. Default one
	// minute; negative means no limit.
	StallTimeout time.Duration
	// Repeat runs one request of an upload, and runs it again after an error that may
	// pass. Default: four times, with pauses. [remote.Retry.Do] shares the budget of the
	// store's other retries.
	Repeat func(ctx context.Context, f func(context.Context) error) error
	// Transport makes the requests. Default: one with CAFile and SkipVerify.
	Transport http.RoundTripper
}

// Store is an [objstore.Store] in a bucket, with all its optional abilities.
type Store struct {
	core   *minio.Core
	bucket string
	root   string // prefix of all keys, "" or with a slash at its end
	region string
	where  string // for messages: bucket and endpoint, without credentials
	keys   *keys
	secure bool // TLS

	sse          encrypt.ServerSide
	storageClass string
	conditional  bool // the server honours If-None-Match
	partSize     int64
	repeat       func(context.Context, func(context.Context) error) error
	memory       memory
	transport    http.RoundTripper
	seen         atomic.Int64 // when the bucket last answered, by clock()
	started      time.Time
	closed       atomic.Bool

	mu   sync.Mutex
	open map[string]int // uploads open here: staging ids and multipart uploads
}

var (
	_ objstore.Store         = (*Store)(nil)
	_ objstore.UploadSweeper = (*Store)(nil)
	_ objstore.Mover         = (*Store)(nil)
	_ objstore.Opener        = (*Store)(nil)
	_ objstore.Redirector    = (*Store)(nil)
	_ objstore.KeyedUploader = (*Store)(nil)
)

// New opens the store. It asks the server whether the bucket is there, can be
// written and honours conditional writes, so ctx bounds a few requests. A server
// that does not answer is an [objstore.BusyError].
func New(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	tr, err := newTransport(&o)
	if err != nil {
		return nil, fmt.Errorf("open object store: %w", err)
	}
	s := &Store{
		bucket: o.Bucket, root: o.Prefix, region: o.Region, partSize: o.PartSize,
		where:        fmt.Sprintf("bucket %q at %s", o.Bucket, o.Endpoint),
		storageClass: o.StorageClass, secure: o.Secure, repeat: o.Repeat, transport: tr,
		memory: memory{limit: o.Memory}, started: time.Now(), open: map[string]int{},
	}
	if s.repeat == nil {
		s.repeat = repeat
	}
	if s.keys, err = newKeys(ctx, &o, &http.Client{Transport: tr, Timeout: time.Minute}); err != nil {
		return nil, fmt.Errorf("open %s: %w", s.where, err)
	}
	if s.sse, err = o.encryption(); err != nil {
		return nil, err
	}
	conf := &minio.Options{
		Creds: s.keys.creds, Secure: o.Secure, Region: o.Region, MaxRetries: 1,
		Transport: &watched{inner: tr, stall: o.StallTimeout},
	}
	if o.PathStyle {
		conf.BucketLookup = minio.BucketLookupPath
	}
	if s.core, err = minio.NewCore(o.Endpoint, conf); err != nil {
		return nil, fmt.Errorf("open %s: %w", s.where, err)
	}
	if err := s.probe(ctx); err != nil {
		return nil, fmt.Errorf("open object store: %w", errors.Join(err, s.Close()))
	}
	return s, nil
}

// check completes the options.
func (o *Options) check() error {
	if u, err := url.Parse(o.Endpoint); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		if strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
			return fmt.Errorf("endpoint of the object store: want host or host:port, without path, user or query")
		}
		o.Endpoint, o.Secure = u.Host, u.Scheme == "https"
	}
	switch {
	case o.Endpoint == "":
		return fmt.Errorf("endpoint of the object store is missing")
	case o.Bucket == "":
		return fmt.Errorf("bucket of the object store is missing")
	}
	if err := s3utils.CheckValidBucketName(o.Bucket); err != nil {
		return fmt.Errorf("bucket %q: %w", o.Bucket, err)
	}
	if o.Prefix = strings.Trim(o.Prefix, "/"); o.Prefix != "" {
		if err := objstore.CheckKey(o.Prefix); err != nil {
			return fmt.Errorf("prefix in bucket %q: %w", o.Bucket, err)
		}
		o.Prefix += "/"
	}
	if o.PartSize == 0 {
		o.PartSize = defaultPart
	}
	if o.PartSize < minPart || o.PartSize > maxPart {
		return fmt.Errorf("part size of %d bytes: want %d to %d", o.PartSize, minPart, maxPart)
	}
	if o.Memory == 0 {
		o.Memory = defaultMemory
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = defaultStall
	}
	if o.Region == "" && !s3utils.IsAmazonEndpoint(url.URL{Host: o.Endpoint}) {
		o.Region = "us-east-1" // the region that servers without regions accept
	}
	return nil
}

func (o *Options) encryption() (encrypt.ServerSide, error) {
	switch o.Encrypt {
	case "":
		return nil, nil
	case "AES256":
		return encrypt.NewSSE(), nil
	case "aws:kms":
		sse, err := encrypt.NewSSEKMS(o.KMSKeyID, nil)
		if err != nil {
			return nil, fmt.Errorf("encryption of the object store: %w", err)
		}
		return sse, nil
	}
	return nil, fmt.Errorf("encryption %q of the object store: want AES256 or aws:kms", o.Encrypt)
}

// probe finds out whether the bucket can be written and honours If-None-Match. Once the
// object is there, that takes one request.
func (s *Store) probe(ctx context.Context) error {
	for range 2 { // the first try may create the object
		err := s.repeat(ctx, func(ctx context.Context) error { return s.putOnce(ctx, s.root+probeKey, nil, true) })
		switch {
		case errors.Is(err, objstore.ErrExist):
			s.conditional = true
			return nil
		case isNotImplemented(err):
			return s.putOnce(ctx, s.root+probeKey, nil, false)
		case err != nil:
			return err
		}
	}
	return nil
}

func isNotImplemented(err error) bool {
	var refused *conditionError
	return errors.As(err, &refused)
}

// conditionError says that a server does not support conditional writes.
type conditionError struct{ msg string }

func (e *conditionError) Error() string { return e.msg }

// Close releases idle connections. Uploads that are open must have ended.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
	return nil
}

// clock returns a time that does not go back, for the age of what was seen.
func (s *Store) clock() int64 { return int64(time.Since(s.started)) + 1 }

// begin makes the checks with which every method starts.
func (s *Store) begin(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("%s: %w", s.where, fs.ErrClosed)
	}
	return ctx.Err()
}

// beginKey is like begin, for a method with a key.
func (s *Store) beginKey(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if strings.HasPrefix(key+"/", uploadDir) {
		return fmt.Errorf("key %q: %s is kept for uploads", key, uploadDir)
	}
	return s.begin(ctx)
}

// Stat describes an object. See [objstore.Store].
func (s *Store) Stat(ctx context.Context, key string) (objstore.Info, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return objstore.Info{}, err
	}
	return s.stat(ctx, key)
}

func (s *Store) stat(ctx context.Context, key string) (objstore.Info, error) {
	var info objstore.Info
	var before int64
	err := s.call(ctx, "stat object "+key, func(ctx context.Context) error {
		before = s.seen.Load()
		o, err := s.core.StatObject(ctx, s.bucket, s.root+key, minio.StatObjectOptions{})
		if err == nil && (o.Size < 0 || o.ETag == "") {
			err = &objstore.BusyError{Err: fmt.Errorf("%s: the answer tells no size or no ETag, so it is not the store's", s.where)}
		}
		info = objstore.Info{Key: key, Size: o.Size, ModTime: o.LastModified, Tag: o.ETag}
		return err
	})
	// The answer to HEAD is the same for a missing object and for a missing bucket.
	if errors.Is(err, objstore.ErrNotExist) && (before == 0 || time.Duration(s.clock()-before) > seenLately) {
		s.seen.Store(before)
		if err := s.checkBucket(ctx); err != nil {
			return objstore.Info{}, fmt.Errorf("stat object %s: %w", key, err)
		}
	}
	if err != nil {
		return objstore.Info{}, err
	}
	return info, nil
}

// checkBucket returns an error if the bucket is not there.
func (s *Store) checkBucket(ctx context.Context) error {
	var there bool
	err := s.call(ctx, "look for the bucket", func(ctx context.Context) (err error) {
		there, err = s.core.BucketExists(ctx, s.bucket)
		return err
	})
	if err == nil && !there {
		s.seen.Store(0)
		return s.noBucket()
	}
	return err
}

// putOptions returns the options of every new object.
func (s *Store) putOptions() minio.PutObjectOptions {
	return minio.PutObjectOptions{ServerSideEncryption: s.sse, StorageClass: s.storageClass, DisableContentSha256: true}
}

// send puts an object by one request. It counts only if the answer has an ETag, because
// something in between may answer 200 to anything.
func (s *Store) send(ctx context.Context, name string, body io.ReadSeeker, size int64, opts minio.PutObjectOptions) (etag string, err error) {
	sum, err := s.sum(body)
	if err != nil {
		return "", err
	}
	o, err := s.core.PutObject(ctx, s.bucket, name, body, size, "", sum, opts)
	if err == nil {
		err = s.proof(o.ETag)
	}
	return o.ETag, err
}

// sum returns the SHA-256 of a body, so that the server notices changes by the network.
// Under TLS it is left out. It does not use minio's way to sign the body in chunks,
// because RADOS gateways refuse it for empty bodies.
func (s *Store) sum(body io.ReadSeeker) (string, error) {
	if s.secure {
		return "", nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, body); err != nil {
		return "", err
	}
	_, err := body.Seek(0, io.SeekStart)
	return hex.EncodeToString(h.Sum(nil)), err
}

// Put writes a small object whole. See [objstore.Store], and the package for ifAbsent.
func (s *Store) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	if ifAbsent && !s.conditional {
		_, err := s.stat(ctx, key)
		if err == nil {
			return fmt.Errorf("object %s: %w", key, objstore.ErrExist)
		}
		if !errors.Is(err, objstore.ErrNotExist) {
			return err
		}
		ifAbsent = false
	}
	return s.put(ctx, key, data, ifAbsent)
}

// put writes an object, and tries again if it met another conditional write.
func (s *Store) put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	for try := 1; ; try++ {
		err := s.putOnce(ctx, s.root+key, data, ifAbsent)
		if !ifAbsent || try == conflictTries || !objstore.IsBusy(err) || !errors.Is(err, errConflict) {
			return err
		}
		if err := sleep(ctx, time.Duration(try)*20*time.Millisecond); err != nil {
			return err
		}
	}
}

// errConflict marks a conditional write that met another one, so that its outcome is
// unknown.
var errConflict = errors.New("another write of the object is under way")

func (s *Store) putOnce(ctx context.Context, name string, data []byte, ifAbsent bool) error {
	return s.call(ctx, "put object "+strings.TrimPrefix(name, s.root), func(ctx context.Context) error {
		opts := s.putOptions()
		if ifAbsent {
			opts.SetMatchETagExcept("*")
		}
		_, err := s.putObject(ctx, name, bytes.NewReader(data), int64(len(data)), opts)
		if r := minio.ToErrorResponse(err); ifAbsent && err != nil {
			switch {
			case r.StatusCode == http.StatusConflict:
				return &objstore.BusyError{Err: fmt.Errorf("%s: %w", s.where, errConflict)}
			case r.StatusCode == http.StatusNotImplemented:
				return &conditionError{"the server knows no conditional writes"}
			}
		}
		return err
	})
}

// Delete removes an object. See [objstore.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.beginKey(ctx, key); err != nil {
		return err
	}
	return s.remove(ctx, s.root+key)
}

// remove deletes one object of the bucket by its full name.
func (s *Store) remove(ctx context.Context, name string) error {
	err := s.call(ctx, "delete object "+strings.TrimPrefix(name, s.root), func(ctx context.Context) error {
		return s.core.RemoveObject(ctx, s.bucket, name, minio.RemoveObjectOptions{})
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	return err
}

// Move copies the object on the server and deletes the old one. See [objstore.Mover]. If
// it breaks off, both exist.
func (s *Store) Move(ctx context.Context, from, to string) error {
	if err := errors.Join(s.beginKey(ctx, from), s.beginKey(ctx, to)); err != nil {
		return err
	}
	info, err := s.stat(ctx, from)
	if err != nil {
		return fmt.Errorf("move object: %w", err)
	}
	if from == to {
		return nil
	}
	if info.Size > maxSingleCopy {
		err = s.copyLarge(ctx, s.root+from, to, info.Size)
	} else {
		err = s.repeat(ctx, func(ctx context.Context) error { return s.copySmall(ctx, from, to) })
	}
	if err == nil { // checked before the only other copy is deleted
		err = s.repeat(ctx, func(ctx context.Context) error {
			return s.call(ctx, "look for object "+to, func(ctx context.Context) error { return s.confirm(ctx, s.root+to, info.Size) })
		})
	}
	if err != nil {
		return err
	}
	return s.repeat(ctx, func(ctx context.Context) error { return s.Delete(ctx, from) })
}

// copySmall copies an object by one request.
func (s *Store) copySmall(ctx context.Context, from, to string) error {
	return s.call(ctx, "copy object "+from+" to "+to, func(ctx context.Context) error {
		opts := s.putOptions()
		headers := map[string]string{}
		for name, v := range opts.Header() {
			headers[name] = v[0]
		}
		o, err := s.core.CopyObject(ctx, s.bucket, s.root+from, s.bucket, s.root+to, headers, minio.CopySrcOptions{}, opts)
		if err == nil && o.ETag == "" { // S3 reports errors inside a 200
			err = &objstore.BusyError{Err: fmt.Errorf("%s: the copy was not made", s.where)}
		}
		return err
	})
}

// URL signs an address for GET. See [objstore.Redirector]. It shortens times to a week,
// which is the most that the signature allows, and rounds them up to a second.
func (s *Store) URL(ctx context.Context, key string, valid time.Duration) (string, error) {
	if err := s.beginKey(ctx, key); err != nil {
		return "", err
	}
	const most = 7 * 24 * time.Hour
	valid = min(max((valid+time.Second-1).Truncate(time.Second), time.Second), most)
	var u *url.URL
	err := s.call(ctx, "sign a URL of object "+key, func(ctx context.Context) (err error) {
		u, err = s.core.PresignedGetObject(ctx, s.bucket, s.root+key, valid, nil)
		return err
	})
	if err != nil {
		return "", err
	}
	return u.String(), nil
}
