package config

import (
	"fmt"
	"path/filepath"
	"time"
)

// Volumes configures images as block volumes in storage that nodes share.
type Volumes struct {
	Driver        string        `yaml:"driver" default:"" enum:"|file|rbd" doc:"Where volumes are: rbd, images of a Ceph pool; file, files of a directory that all nodes mount. Empty: images are not built as volumes. rbd needs a binary with librbd (make build-ceph)."`
	File          VolumesFile   `yaml:"file" doc:"The driver file."`
	RBD           VolumesRBD    `yaml:"rbd" doc:"The driver rbd."`
	Build         string        `yaml:"build" default:"off" enum:"off|push" doc:"Which images are built: push, all that are pushed; off, only those that slipway volume build names. A failed build never fails a push."`
	Rules         []VolumesRule `yaml:"rules" doc:"Exceptions for some repositories. The first rule for a repository applies."`
	FS            string        `yaml:"fs" default:"ext4" enum:"ext4|erofs|both" doc:"File systems of volumes: ext4, a chain of clones, one for each layer, which share blocks and can be written by a container; erofs, one compact read-only volume for an image."`
	Workers       int           `yaml:"workers" default:"1" min:"1" doc:"Images built at once."`
	CredentialTTL time.Duration `yaml:"credential_ttl" default:"24h" min:"1m" doc:"How long a node's credential for the storage is valid. It must be longer than a node needs to ask for a new one."`
}

// VolumesFile configures volumes in a directory.
type VolumesFile struct {
	Dir string `yaml:"dir" doc:"Absolute path of the directory. It belongs to one registry." example:"/mnt/shared/slipway-volumes"`
}

// VolumesRBD configures volumes in Ceph.
type VolumesRBD struct {
	Conf            string `yaml:"conf" default:"/etc/ceph/ceph.conf" doc:"Configuration file of the cluster."`
	User            string `yaml:"user" default:"admin" doc:"User of cephx without \"client.\". To give nodes their own credentials, it must be allowed to make users."`
	Keyring         string `yaml:"keyring" doc:"File with the user's key. Empty: as conf says."`
	Pool            string `yaml:"pool" default:"rbd" doc:"Pool of the volumes."`
	Namespace       string `yaml:"namespace" default:"slipway" doc:"Namespace of the pool that volumes are in. It belongs to one registry, with all its servers."`
	ClonesNamespace string `yaml:"clones_namespace" default:"slipway-clones" doc:"Namespace of the pool in which nodes make the clones of containers."`
}

// VolumesRule is an exception for some repositories.
type VolumesRule struct {
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags. Empty means all." example:"scratch/**"`
	Build        string   `yaml:"build" default:"off" enum:"off|push" doc:"As volumes.build, for these repositories."`
}

// FileSystems returns the names of the file systems that volumes are built with.
func (c *Volumes) FileSystems() []string {
	if c.FS == "both" {
		return []string{"ext4", "erofs"}
	}
	return []string{c.FS}
}

func (v *validator) volumesValues(c *Volumes) {
	for i, r := range c.Rules {
		v.patterns(fmt.Sprintf("volumes.rules[%d].repositories", i), r.Repositories)
	}
	switch c.Driver {
	case "":
		if c.Build != "off" {
			v.bad("volumes.build", "needs volumes.driver, which says where volumes are")
		}
	case "file":
		if !filepath.IsAbs(c.File.Dir) {
			v.bad("volumes.file.dir", "must be an absolute path")
		}
	case "rbd":
		if c.RBD.Pool == "" || c.RBD.Namespace == "" {
			v.bad("volumes.rbd.namespace", "and volumes.rbd.pool must not be empty")
		}
		if c.RBD.ClonesNamespace == c.RBD.Namespace {
			v.bad("volumes.rbd.clones_namespace", "must not be the namespace of the volumes, which nodes may only read")
		}
	}
}
