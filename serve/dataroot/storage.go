package dataroot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/fsstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/objstore/remote"
	"example.org/slipway/registry/objstore/s3store"
	"example.org/slipway/registry/objstore/swiftstore"
	"example.org/slipway/registry/storage"
)

// openStorage locks a data root and opens its catalogue and object store. catalogDir is
// the directory of the catalogue if that is not at its configured place; otherwise it is
// "".
func openStorage(ctx context.Context, cfg *config.Config, catalogDir string) (_ *Root, err error) {
	inMemory := cfg.Storage.Driver() == "inmemory"
	r := &Root{cfg: cfg, log: slog.Default(), Dir: cfg.Storage.Root()}
	if inMemory { // the catalogue needs a file all the same
		if r.Dir, err = os.MkdirTemp("", "slipway-inmemory-"); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(ctx))
		}
	}()
	if _, err := os.Stat(filepath.Join(r.Dir, backup.Marker)); err == nil {
		// Its catalogue may be hard-linked to the catalogues of other backups.
		return nil, fmt.Errorf("%s is a backup, which nobody may write to; restore it first: slipway restore %s --root DIR", r.Dir, r.Dir)
	}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	if r.lock, err = lockRoot(r.Dir); err != nil {
		return nil, err
	}
	r.lock.removeDir = inMemory
	if r.Objects, err = r.openStore(ctx, &cfg.Storage); err != nil {
		return nil, err
	}
	r.Store = r.Objects
	if err := r.openCatalog(ctx, &cfg.Storage, catalogDir); err != nil {
		return nil, err
	}
	return r, nil
}

// openStore opens the store of the configured driver.
func (r *Root) openStore(ctx context.Context, st *config.Storage) (objstore.Store, error) {
	if !st.Remote() {
		if st.Driver() == "inmemory" {
			return memstore.New(nil), nil
		}
		r.local = true
		fs, err := fsstore.New(r.Dir, &fsstore.Options{Dirs: objectDirs, KeepFree: keepFree(r.Dir)})
		if err != nil {
			return nil, fmt.Errorf("open the object store: %w", err)
		}
		return fs, nil
	}
	retry := remote.NewRetry(nil)
	inner, err := openRemote(ctx, st, retry)
	if err != nil {
		return nil, err
	}
	s := remote.Wrap(inner, &remote.Options{Driver: st.Driver(), Retry: retry})
	r.collectors = append(r.collectors, s.Metrics()...)
	return s, nil
}

// objectDirs are the directories in which a file system store has its objects.
var objectDirs = []string{blobsDir + "sha256", blobsDir + "sha512", "slipway/gear/packs", "slipway/verify"}

// openRemote opens a store that is reached over a network.
func openRemote(ctx context.Context, st *config.Storage, retry *remote.Retry) (objstore.Store, error) {
	if c := st.Swift; c != nil {
		return swiftstore.New(ctx, swiftstore.Options{
			AuthURL: c.AuthURL, AuthVersion: c.AuthVersion, Username: c.Username, Password: c.Password.Reveal(),
			Tenant: c.Tenant, TenantID: c.TenantID, TenantDomain: c.TenantDomain, TenantDomainID: c.TenantDomainID,
			Domain: c.Domain, DomainID: c.DomainID, TrustID: c.TrustID, Region: c.Region, EndpointType: c.EndpointType,
			Container: c.Container, Prefix: c.Prefix, ChunkSize: int64(c.ChunkSize), TempURLKey: c.SecretKey.Reveal(),
			CAFile: c.CAFile, InsecureSkipVerify: c.InsecureSkipVerify,
		})
	}
	c := st.S3
	o := s3store.Options{
		Endpoint: cmp.Or(c.RegionEndpoint, amazon(c.Region)), Bucket: c.Bucket, Prefix: c.RootDirectory, Region: c.Region,
		AccessKey: c.AccessKey, SecretKey: c.SecretKey.Reveal(), SessionToken: c.SessionToken.Reveal(),
		Secure: c.Secure, CAFile: c.CAFile, SkipVerify: c.SkipVerify, PathStyle: c.ForcePathStyle,
		KMSKeyID: c.KeyID, PartSize: int64(c.ChunkSize), Repeat: retry.Do,
	}
	if c.Encrypt {
		o.Encrypt = "AES256"
		if c.KeyID != "" {
			o.Encrypt = "aws:kms"
		}
	}
	if !strings.EqualFold(c.StorageClass, "NONE") { // Distribution's word for the bucket's default
		o.StorageClass = c.StorageClass
	}
	return s3store.New(ctx, o)
}

// amazon returns the address of Amazon S3 in a region.
func amazon(region string) string {
	switch {
	case region == "":
		return "s3.amazonaws.com"
	case strings.HasPrefix(region, "cn-"):
		return "s3." + region + ".amazonaws.com.cn"
	}
	return "s3." + region + ".amazonaws.com"
}

// openCatalog opens the catalogue at its configured place, or else in dir.
func (r *Root) openCatalog(ctx context.Context, st *config.Storage, dir string) (err error) {
	if st.Catalog.Postgres != "" && dir == "" {
		r.Catalog, err = catalog.OpenPostgres(ctx, st.Catalog.Postgres.Reveal(), &catalog.Options{Grace: st.GC.Grace, Readers: st.Catalog.Connections, OnMigrate: r.migrated})
		return err
	}
	if err := checkMoved(r.Dir); err != nil {
		return err
	}
	path := filepath.Join(cmp.Or(dir, r.Dir), registry.CatalogFile)
	r.Catalog, err = catalog.Open(ctx, path, &catalog.Options{Grace: st.GC.Grace, Reserve: dir == "" && st.Driver() != "inmemory", OnMigrate: r.migrated})
	return err
}

// migrated logs that the schema of the catalogue was brought up to date.
func (r *Root) migrated(m engine.Migration) {
	if m.Err != nil {
		r.log.Warn("the catalogue as it was before its migration could not be kept", "err", m.Err)
	}
	r.log.Info("catalogue migrated", "from", m.From, "to", m.To, "copy", m.Copy)
}

// blobsDir is where blobs are. linksDir is where a Distribution registry keeps its links;
// this registry has none.
const (
	blobsDir = distributionDir + "/blobs/"
	linksDir = distributionDir + "/repositories/"
)

// checkCatalog refuses an object store that holds blobs that the catalogue does not know.
// The registry would look empty, and the blobs would belong to no repository. It asks the
// store only if the catalogue is empty.
func (r *Root) checkCatalog(ctx context.Context, cfg *config.Config) error {
	if !cfg.Storage.Remote() {
		return nil // checkAdopted has looked
	}
	// A registry that has begun is recognized by its id, even if it is empty.
	if begun, err := hasBegun(ctx, r.Catalog); err != nil || begun {
		return err
	}
	adopt := "adopt it first: slipway import --in-place --config FILE"
	if found, err := holdsAny(ctx, r.Objects, linksDir); err != nil || found {
		return cmp.Or(err, checkOwned(ctx, r.Catalog, r.Objects), boolError(found, "the object store belongs to a Distribution registry; "+adopt))
	}
	found, err := holdsAny(ctx, r.Objects, blobsDir)
	return errors.Join(err, boolError(found, "the object store holds blobs, and the catalogue is empty: name the catalogue that belongs to it (storage.directory, storage.catalog.postgres), restore a backup (slipway restore), or name another bucket or prefix"))
}

func boolError(is bool, text string) error {
	if !is {
		return nil
	}
	return errors.New(text)
}

// knowsBlobs reports whether the catalogue has any entry.
func knowsBlobs(ctx context.Context, cat *catalog.Catalog) (bool, error) {
	names, err := cat.Repositories(ctx, "", 1)
	if err != nil || len(names) > 0 {
		return len(names) > 0, err
	}
	list, err := repair.New(cat.DB).Contents(ctx, 0, 1)
	if err != nil {
		return false, fmt.Errorf("look into the catalogue: %w", err)
	}
	if len(list) > 0 {
		return true, nil
	}
	// A server that was killed may have left objects of a push that was not recorded, or
	// of a deletion that did not finish.
	const ever = 365 * 24 * time.Hour
	uploads, err := cat.Uploads.Stale(ctx, time.Now().Add(ever), 1)
	if err != nil || len(uploads) > 0 {
		return len(uploads) > 0, err
	}
	deleting, err := cat.Garbage.Deleting(ctx, 1)
	return len(deleting) > 0, err
}

// holdsAny reports whether the store has an object below a prefix.
func holdsAny(ctx context.Context, store objstore.Store, prefix string) (bool, error) {
	for _, err := range store.List(ctx, prefix, "") {
		if err != nil {
			return false, fmt.Errorf("look into the object store: %w", err)
		}
		return true, nil
	}
	return false, nil
}

// blobOf returns the digest of the blob whose object has the key.
func blobOf(key string) (oci.Digest, bool) {
	rest, ok := strings.CutPrefix(key, blobsDir)
	if !ok {
		return "", false
	}
	part := strings.Split(rest, "/")
	if len(part) != 4 || part[3] != "data" {
		return "", false
	}
	d := oci.Digest(part[0] + ":" + part[2])
	if d.Validate() != nil || storage.BlobKey(d) != key {
		return "", false
	}
	return d, true
}

// verifyBlob returns the hash and the sum with which the bytes of a blob's object are
// verified.
func verifyBlob(key string) (hash.Hash, []byte) {
	d, ok := blobOf(key)
	if !ok {
		return nil, nil
	}
	want, err := hex.DecodeString(d.Encoded())
	if err != nil {
		return nil, nil
	}
	switch d.Algorithm() {
	case "sha256":
		return sha256.New(), want
	case "sha512":
		return sha512.New(), want
	}
	return nil, nil
}

// uncached is the context key for work that must see what the object store has, not what
// a cache remembers of it.
type uncached struct{}

// PastCache returns a context whose reads bypass the cache and go to the object store.
func PastCache(ctx context.Context) context.Context {
	return context.WithValue(ctx, uncached{}, true)
}

// cachedStore is a store that has caches in front of an inner store.
type cachedStore struct {
	objstore.Store
	inner objstore.Store
}

var _ objstore.Wrapper = (*cachedStore)(nil)

// Get implements objstore.Store.
func (s *cachedStore) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	if ctx.Value(uncached{}) != nil {
		return s.inner.Get(ctx, key, off, n)
	}
	return s.Store.Get(ctx, key, off, n)
}

// Unwrap implements objstore.Wrapper.
func (s *cachedStore) Unwrap() objstore.Store { return s.Store }
