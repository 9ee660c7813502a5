package config

import (
	"net/netip"
	"time"
)

// BlobCache configures the cache of blobs in front of the object store.
type BlobCache struct {
	RAM          *Size  `yaml:"ram" doc:"Memory for blobs, in bytes; 0 for none. Unset: none with filesystem and inmemory, and with the other drivers a tenth of the memory this process may use, at most 1GiB." example:"1GiB"`
	SSD          Size   `yaml:"ssd" default:"0" min:"0" doc:"Space for blobs on a local disk, in bytes. 0 uses none."`
	Directory    string `yaml:"directory" doc:"Directory of the files on the local disk, for this server alone. Empty means slipway/cache in the data directory." example:"/mnt/nvme/slipway"`
	RAMPolicy    string `yaml:"ram_policy" default:"gdsf" enum:"2q|arc|arc-unit|fifo|gdsf|hyperbolic|lfuda|lhd|lru|s3-fifo|sieve|slru|w-tinylfu" doc:"Policy that decides what is given up first when memory is full."`
	SSDPolicy    string `yaml:"ssd_policy" default:"lru" enum:"2q|arc|arc-unit|fifo|gdsf|hyperbolic|lfuda|lhd|lru|s3-fifo|sieve|slru|w-tinylfu" doc:"Policy that decides what is given up first when the disk's share is full."`
	Admission    string `yaml:"admission" default:"adaptive" enum:"all|second-touch|adaptive" doc:"What is written to the disk: all; second-touch, only blobs that are requested a second time; adaptive, all while at least half of a write budget is left, and then second-touch."`
	WriteBudget  Size   `yaml:"write_budget" default:"0" min:"0" doc:"Bytes that may be written to the disk a day, to spare it. 0 means no limit."`
	WriteThrough bool   `yaml:"write_through" default:"true" doc:"Caches what is pushed as if it had been requested, so that the first pull need not read it from the object store."`
	Large        *Size  `yaml:"large" doc:"Blobs of this size or more are never kept in memory. Unset: 100MiB, and at most a hundredth of the memory for blobs." example:"100MiB"`
}

// Redirect configures when clients are redirected to the object store.
type Redirect struct {
	Disable bool           `yaml:"disable" doc:"True sends all content through this server, whatever mode and rules say. The drivers filesystem and inmemory always do."`
	Mode    string         `yaml:"mode" default:"never" enum:"never|uncached|always|large" doc:"When a client that requests a blob is redirected to the object store: never; large, for blobs of min_size or more; uncached, for those of them that the cache does not hold; always, for every blob above 64KiB. The client must be able to reach the store."`
	MinSize Size           `yaml:"min_size" default:"1MiB" min:"0" doc:"Smallest blob for large and uncached."`
	Expiry  time.Duration  `yaml:"expiry" default:"20m" min:"1m" doc:"How long the address that a client is redirected to is valid. At most 7 days."`
	Rules   []RedirectRule `yaml:"rules" doc:"Exceptions for some repositories and clients. The first rule that matches both applies."`
}

// RedirectRule is an exception for some repositories and clients.
type RedirectRule struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags. Empty means all." example:"models/**"`
	Networks     []string `yaml:"networks" doc:"Addresses and networks of clients. Empty means all." example:"10.0.0.0/8"`
	Mode         string   `yaml:"mode" default:"never" enum:"never|uncached|always|large" doc:"As storage.redirect.mode, for these."`
}

// Prefixes returns the networks of the rule. Validate has refused invalid networks.
func (r *RedirectRule) Prefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, s := range r.Networks {
		if p, err := parseProxy(s); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// MaxRedirectExpiry is the longest validity of an address, because S3 signs no address
// for longer.
const MaxRedirectExpiry = 7 * 24 * time.Hour

// Prefetch configures how blobs are fetched into the cache before they are requested.
type Prefetch struct {
	Mode       string        `yaml:"mode" default:"manifest" enum:"off|algorithm1|manifest" doc:"manifest fetches the layers of a manifest when a client gets it for the first time; algorithm1, of the FAST'18 paper, fetches what was pushed to the repository lately; off fetches nothing. Without a cache nothing is fetched."`
	LM         time.Duration `yaml:"lm" default:"12h" min:"1s" doc:"With algorithm1, how long a pushed layer counts as new."`
	ML         time.Duration `yaml:"ml" default:"1h" min:"1s" doc:"How long a layer counts as fetched ahead."`
	Budget     Size          `yaml:"budget" default:"64MiB" min:"0" doc:"Bytes a second that may be fetched ahead in the long run. 0 means no limit."`
	Burst      Size          `yaml:"burst" default:"1GiB" min:"1MiB" doc:"Bytes that may be fetched ahead at once. A larger layer is never fetched ahead, unless budget is 0."`
	Parallel   int           `yaml:"parallel" default:"4" min:"1" doc:"Layers fetched ahead at the same time."`
	Cancel     time.Duration `yaml:"cancel" default:"60s" min:"1s" doc:"With manifest, how long a client may take to request its first layer. After that, fetches that were begun for the client are cancelled."`
	Eager      Size          `yaml:"eager" default:"32MiB" min:"0" doc:"With manifest, size up to which a layer is fetched when a client is given the manifest. Larger ones wait until the client asks for a first blob, such as the configuration. 0 fetches all at once."`
	Forget     time.Duration `yaml:"forget" default:"24h" min:"1m" doc:"With manifest, how long it is remembered that a client got a manifest."`
	Precision  float64       `yaml:"precision" default:"0.1" min:"-1" doc:"With manifest, share of what was fetched ahead that must be used, from 0 to 1. For a repository with less, nothing is fetched ahead for the time of rest. Negative: there is no such limit."`
	Rest       time.Duration `yaml:"rest" default:"1h" min:"1s" doc:"With manifest, how long nothing is fetched ahead for a repository that misses precision."`
	Pin        time.Duration `yaml:"pin" default:"1h" min:"1s" doc:"With manifest, how long the layers of a pushed manifest stay in the cache in any case, if the cache holds them."`
	PinClients int           `yaml:"pin_clients" default:"16" min:"1" doc:"With manifest, after how many clients that got the manifest its layers are no longer kept by pin."`
	Remember   int           `yaml:"remember" default:"262144" min:"1024" doc:"With manifest, number of pairs of client and content that are remembered. Each takes some 60 bytes."`
}
