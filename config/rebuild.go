package config

import "time"

// Rebuild configures which layers are dropped. A dropped layer is rebuilt from its files
// for anybody who pulls it.
type Rebuild struct {
	ColdAfter    time.Duration `yaml:"cold_after" min:"0s" doc:"Drops layers of images that nobody has pulled for this long. Each is rebuilt from its files, byte for byte, when a client pulls it. 0 drops none. This works only with storage.filesystem and one server: docs/rebuilding.md." example:"30d"`
	Repositories []string      `yaml:"repositories" doc:"Patterns of repositories, as in immutable_tags. A layer is dropped only if all repositories that have it match. Empty means all." example:"archive/**"`
	Again        time.Duration `yaml:"again" default:"168h" min:"0s" doc:"How long a layer stays after its recipe was made. Then it is rebuilt from what is stored, as a test, and dropped."`
	LeastBytes   Size          `yaml:"least_bytes" default:"64KiB" min:"0" doc:"Smallest layer that is dropped, in bytes."`
	LeastRate    Size          `yaml:"least_rate" default:"2MiB" min:"0" doc:"Bytes that one processor must rebuild in a second. A layer that takes longer is not dropped."`
	MostRecipe   int           `yaml:"most_recipe" default:"5" min:"1" doc:"Size limit of a recipe, in percent of its layer. A layer with a larger recipe is not dropped."`
	Interval     time.Duration `yaml:"interval" default:"1h" min:"1s" doc:"Time between two searches for layers to drop."`
	Share        int           `yaml:"share" default:"25" min:"1" doc:"Share of one processor's time that work on recipes may take, in percent, at most 100."`
	BringBack    int           `yaml:"bring_back_after" default:"3" min:"0" doc:"How many rebuilds within a day store a dropped layer again, until it is cold once more. Clients that pull within a minute of each other share a rebuild. 0 means never."`
	Parity       int           `yaml:"parity" default:"1" min:"0" doc:"How many packs of each group of 10 to 14 may be lost at once. So many parity files are kept for each group, from which lost packs are made again. 0 declares that the storage itself is redundant, such as RAID or Ceph."`
	ScrubEvery   time.Duration `yaml:"scrub_every" default:"168h" min:"0s" doc:"How often each pack that dropped layers need is read whole and compared with its digest. 0 means never."`
	ScrubRate    Size          `yaml:"scrub_rate" default:"16MiB" min:"0" doc:"Bytes of packs that are read in a second for that. 0 means as fast as possible."`
}

// rebuildRelations refuses to drop layers if that is not safe yet.
func (v *validator) rebuildRelations(s *Storage) {
	r := &s.Rebuild
	v.patterns("storage.rebuild.repositories", r.Repositories)
	if r.Share > 100 {
		v.bad("storage.rebuild.share", "must be at most 100")
	}
	if r.Parity > 4 {
		v.bad("storage.rebuild.parity", "must be at most 4")
	}
	if r.ColdAfter == 0 {
		return
	}
	switch {
	case s.Driver() != "filesystem":
		v.bad("storage.rebuild.cold_after", "works only with storage.filesystem; the driver is "+s.Driver())
	case s.Catalog.Postgres != "":
		v.bad("storage.rebuild.cold_after", "works only where one server has the catalogue to itself")
	case v.c.Gear.Settle.Disabled:
		v.bad("storage.rebuild.cold_after", "needs gear.settle: only layers whose files are settled are dropped")
	}
}
