package config

import (
	"time"

	"example.org/slipway/config/yamlfile"
)

// Storage configures where content is kept and when it is removed.
type Storage struct {
	FileSystem        FileSystem           `yaml:"filesystem" doc:"Keeps content in a directory. storage.root is short for its rootdirectory."`
	InMemory          yamlfile.Present     `yaml:"inmemory" doc:"Keeps content in memory instead, for tests: it is gone when the server stops."`
	S3                *S3                  `yaml:"s3" doc:"Keeps content in a bucket instead."`
	Swift             *Swift               `yaml:"swift" doc:"Keeps content in a Swift container instead."`
	Directory         string               `yaml:"directory" default:"/var/lib/registry" doc:"Local directory with s3 and swift, for what is not in the object store: the catalogue unless it is in PostgreSQL, the key of the token service, the administration socket and the disk's share of blob_cache. storage.root is short for it then."`
	Catalog           SharedCatalog        `yaml:"catalog" doc:"Where the catalogue is, the database of everything that the registry stores."`
	Memory            Size                 `yaml:"memory" default:"64MiB" min:"0" doc:"Memory for recently read content, in bytes. 0 switches the cache off. The cache prefers content that is small and often requested."`
	Delete            Delete               `yaml:"delete" doc:"Deleting by clients."`
	Cache             yamlfile.ForeignOnly `yaml:"cache" doc:"Distribution's descriptor cache. Its keys change nothing here."`
	Tag               yamlfile.ForeignOnly `yaml:"tag" doc:"Distribution's lookup of tags. Its keys change nothing here."`
	BlobCache         BlobCache            `yaml:"blob_cache" doc:"Cache of blobs in front of the object store. storage.memory, for manifests and the smallest blobs, is used in any case."`
	Prefetch          Prefetch             `yaml:"prefetch" doc:"Filling the cache before clients request layers."`
	Redirect          Redirect             `yaml:"redirect" doc:"Sending clients to the object store itself, where the driver can."`
	Maintenance       Maintenance          `yaml:"maintenance" doc:"Upload purging and read-only mode."`
	Rebuild           Rebuild              `yaml:"rebuild" doc:"Dropping layers that nobody pulls. Off by default."`
	GC                GC                   `yaml:"gc" doc:"Garbage collection, which runs while the registry serves."`
	ImmutableTags     []ImmutableTags      `yaml:"immutable_tags" doc:"Tags that cannot be moved or deleted once they are set."`
	Quotas            []Quota              `yaml:"quotas" doc:"What clients may store, by patterns of repositories. A push that would exceed a quota is refused with 403; nothing that is stored is lost."`
	Namespaces        []Namespace          `yaml:"namespaces" doc:"Sets of repositories whose stored bytes and tags are in the metrics slipway_stored_bytes and slipway_stored_tags. Counting reads the whole catalogue, so it takes up to a twentieth of one processor."`
	Retention         []Retention          `yaml:"retention" doc:"Tags that are removed automatically. A tag stays if a keep_ key of any rule for its repository applies to it, or if there is no rule for its repository."`
	RetentionInterval time.Duration        `yaml:"retention_interval" default:"24h" min:"1m" doc:"Time between two runs of the retention rules."`
}

// FileSystem configures the filesystem driver.
type FileSystem struct {
	RootDirectory string `yaml:"rootdirectory" default:"/var/lib/registry" doc:"Directory for all content."`
}

// Delete configures deleting by clients.
type Delete struct {
	Enabled bool `yaml:"enabled" default:"true" doc:"Lets clients delete manifests, tags and blobs, if they have the right to."`
}

// Maintenance configures maintenance.
type Maintenance struct {
	UploadPurging UploadPurging `yaml:"uploadpurging" doc:"Removal of uploads that nobody continued."`
	ReadOnly      ReadOnly      `yaml:"readonly" doc:"Refuses every write. Backups do not need it."`
}

// UploadPurging configures the removal of old uploads.
type UploadPurging struct {
	Enabled bool          `yaml:"enabled" default:"true" doc:"Removes them."`
	Age     time.Duration `yaml:"age" default:"168h" min:"1m" doc:"Time after which an upload counts as given up."`
}

// ReadOnly configures read-only mode.
type ReadOnly struct {
	Enabled bool `yaml:"enabled" doc:"Refuses pushes and deletes."`
}

// GC configures garbage collection.
type GC struct {
	Disabled bool          `yaml:"disabled" doc:"True frees no space. Content that is deleted meanwhile is freed after this is switched off again."`
	Interval time.Duration `yaml:"interval" default:"1h" min:"1s" doc:"Time between two runs."`
	Grace    time.Duration `yaml:"grace" default:"24h" doc:"How long content stays after the last reference to it was removed, or after it was pushed without a reference. It must be longer than any push takes, and at least 5m."`
	Short    bool          `yaml:"short_grace" doc:"True accepts a grace period of less than 5m, for tests: a push that takes longer loses its blobs."`
	Untagged string        `yaml:"untagged" default:"keep" enum:"keep|delete" doc:"What happens to manifests without a tag that no other manifest refers to. keep, as clients may pull them by digest; delete removes them after the grace period."`
}

// MinGrace is the shortest grace period of garbage collection. A push sends its
// blobs minutes before the manifest that refers to them.
const MinGrace = 5 * time.Minute

// ImmutableTags protects tags. A tag is protected if one rule matches both its
// repository and its name.
type ImmutableTags struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories: * stands for any characters within a path segment, ? for one, the segment ** for any number of segments. Empty means all." example:"team/**"`
	Tags         []string `yaml:"tags" doc:"Regular expressions that must match a tag as a whole. Empty means all." example:"v[0-9]+\\.[0-9]+\\.[0-9]+"`
}

// Namespace is a set of repositories whose contents are counted for metrics.
type Namespace struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in immutable_tags. They are the value of the label namespace." example:"team/**"`
}

// Quota bounds what clients may store in repositories, taken together.
type Quota struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in immutable_tags. Empty means all. The quota is for all of them together." example:"team/**"`
	Bytes        Size     `yaml:"bytes" min:"0" doc:"Bytes of layers, manifests and uploads. Content that several of the repositories show counts once. 0 is no limit." example:"100GiB"`
	Tags         int      `yaml:"tags" min:"0" doc:"Number of tags. 0 is no limit." example:"1000"`
	Warn         float64  `yaml:"warn" min:"0" doc:"Share of a limit from which on the log and slipway status warn. 0 means 0.8." example:"0.9"`
}

// Retention is a rule by which tags are removed automatically.
type Retention struct {
	Repositories     []string      `yaml:"repositories" doc:"Patterns of repositories, as in immutable_tags. Empty means all." example:"ci/**"`
	KeepNewest       int           `yaml:"keep_newest" min:"0" doc:"Keeps this many of the tags pushed last. Tags of signatures and the like do not count. 0 keeps no tag for this reason." example:"10"`
	KeepTags         []string      `yaml:"keep_tags" doc:"Keeps tags that one of these regular expressions matches as a whole." example:"main"`
	KeepYounger      time.Duration `yaml:"keep_younger" min:"0s" doc:"Keeps tags pushed within this time." example:"30d"`
	KeepPulledWithin time.Duration `yaml:"keep_pulled_within" min:"0s" doc:"Keeps tags whose image was pulled, by GET or HEAD, or pushed within this time." example:"90d"`
}

// Driver returns the name of the storage driver: filesystem, inmemory, s3 or swift.
func (s *Storage) Driver() string {
	switch {
	case bool(s.InMemory):
		return "inmemory"
	case s.S3 != nil:
		return "s3"
	case s.Swift != nil:
		return "swift"
	}
	return "filesystem"
}

// Remote reports whether content is on other machines.
func (s *Storage) Remote() bool { return s.S3 != nil || s.Swift != nil }

// Root returns the local directory of the server. With the driver inmemory, the server
// creates it anew.
func (s *Storage) Root() string {
	if s.Remote() {
		return s.Directory
	}
	return s.FileSystem.RootDirectory
}
