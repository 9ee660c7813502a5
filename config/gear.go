package config

import (
	"time"
)

// Gear configures the conversion of images to Gear form.
type Gear struct {
	Convert          string        `yaml:"convert" default:"async" enum:"off|async|sync" doc:"When pushed images are converted: async, while they are pushed and soon after; sync, before the push of the manifest is answered; off, only when slipway convert asks for it. A failed conversion never fails a push."`
	Rules            []GearRule    `yaml:"rules" doc:"Exceptions for some repositories. The first rule for a repository applies."`
	SyncTimeout      time.Duration `yaml:"sync_timeout" default:"5m" min:"1s" doc:"Longest time that the push of a manifest waits with convert: sync. The conversion continues after it."`
	Workers          int           `yaml:"workers" default:"2" min:"1" doc:"Number of layers converted at once, including those being pushed."`
	MaxEntries       int           `yaml:"max_entries" default:"1000000" min:"1" doc:"Limit of files, directories and links in a layer. A layer with more is not converted."`
	MaxLayerBytes    Size          `yaml:"max_layer_bytes" default:"256GiB" min:"1" doc:"Size limit of a layer when uncompressed. A larger layer is not converted."`
	MaxFileBytes     Size          `yaml:"max_file_bytes" default:"256GiB" min:"1" doc:"Largest file in a layer, holes included."`
	MaxMetadataBytes Size          `yaml:"max_metadata_bytes" default:"128MiB" min:"1" doc:"Limit of the bytes of paths, targets of links and extended attributes in a layer."`
	MaxXattrs        int           `yaml:"max_xattrs" default:"256" min:"1" doc:"Limit of extended attributes of a file."`
	MaxXattrBytes    Size          `yaml:"max_xattr_bytes" default:"128KiB" min:"1" doc:"Limit of the bytes of names and values of a file's extended attributes."`
	MaxRatio         int           `yaml:"max_ratio" default:"200" min:"1" doc:"Limit of uncompressed bytes for each compressed byte of a layer, after the first ratio_free bytes."`
	RatioFree        Size          `yaml:"ratio_free" default:"16GiB" min:"1" doc:"Uncompressed bytes of a layer to which max_ratio does not apply, because images do contain files of zeros."`
	MaxWindow        Size          `yaml:"max_window" default:"128MiB" min:"1" doc:"Largest zstd window, as zstd --ultra -22 and --long=27 need, at most 2 GiB. Each of workers may hold this much memory."`
	MaxLayerTime     time.Duration `yaml:"max_layer_time" default:"1h" min:"1s" doc:"Longest work on a layer, without the time spent waiting for its bytes. A layer that takes longer is not converted; it can be pulled like any other."`
	Settle           Settle        `yaml:"settle" doc:"Rewriting of what was stored quickly into what takes less space, which also frees the space of deleted files."`
	Anonymous        bool          `yaml:"anonymous_reports" doc:"Accepts reports of anonymous clients: which files containers open first, and which nodes run an image. By default only users may report, unless auth is empty. A report counts once an hour for each client and image."`
	Peers            bool          `yaml:"peers" default:"true" doc:"Introduces nodes that use the same image to each other, so that agents with peers.listen get files from each other. A node is only told of nodes that use an image of a repository from which it may pull."`
	StagedFor        time.Duration `yaml:"staged_for" default:"24h" min:"1m" doc:"How long files that clients upload wait for the image that holds them."`
}

// GearRule is an exception for some repositories.
type GearRule struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags. Empty means all." example:"scratch/**"`
	Convert      string   `yaml:"convert" default:"off" enum:"off|async|sync" doc:"As gear.convert, for these repositories."`
}

// Settle configures the rewriting of packs.
type Settle struct {
	Disabled bool          `yaml:"disabled" doc:"True leaves everything as it was stored first."`
	Interval time.Duration `yaml:"interval" default:"1m" min:"1s" doc:"Time between two searches for something to rewrite."`
	Share    int           `yaml:"share" default:"50" min:"1" doc:"Share of one processor's time that rewriting may take, in percent, at most 100."`
}
