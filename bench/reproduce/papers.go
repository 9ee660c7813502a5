package reproduce

import "slices"

// Papers returns the four works.
func Papers() []Paper {
	return []Paper{
		{ID: fast18, Title: "Anwar et al., Improving Docker Registry Design based on Production Workload Analysis, FAST 2018", Link: "https://www.usenix.org/conference/fast18/presentation/anwar",
			Left: "Figures 1 to 3 show the structure of images, of the registry and of the replayer, and have no values."},
		{ID: gearPaper, Title: "Fan et al., Gear: Enable Efficient Container Storage and Deployment with a New Image Format, ICDCS 2021", Link: "https://doi.org/10.1109/ICDCS51616.2021.00020",
			Left: "Figures 1 to 5 show the motivation and the structure. The one value among them, how much start-up data versions share (39.9 %), has no entry yet."},
		{ID: ociregistry, Title: "Ociregistry and its load test", Link: "https://github.com/aceeric/ociregistry",
			Left: "The dashboards of the two tests are pictures. Entries are made for what the text says of them."},
		{ID: ciderPaper, Title: "Du et al., Cider: a Rapid Docker Container Deployment System Through Sharing Network Storage, HPCC 2017, pages 332 to 339", Link: "https://doi.org/10.1109/HPCC-SmartCity-DSS.2017.44",
			Left: "Figures 1 and 3 to 5 show the structure, and have no values."},
	}
}

// Entries returns all tables and figures that have values.
func Entries() []Entry {
	return slices.Concat(fast18Entries(), gearEntries(), ociregistryEntries(), ciderEntries())
}

// Limit is something that a paper names as future work or as a limit.
type Limit struct{ Paper, What, Here string }

// Limits returns what the papers leave, and where Slipway stands.
func Limits() []Limit {
	return []Limit{
		{fast18, "other analyses with the replayer as plug-ins", "In Go as a package, and as a program that speaks JSON lines, without building anything: analysis.md, simulation.md."},
		{fast18, "arrival rates at a finer grain; provisioning", "Figures 7 and 15 have minutes and single gaps. `slipway plan` sizes a registry from a log. Bursts below a minute have no figure yet."},
		{fast18, "deduplication of layers", "By file, with Gear: gear.md."},
		{fast18, "caches of the servers share nothing", "With several replicas each blob has a home, and replicas read from peers: replicas.md."},
		{fast18, "Algorithm 1 knows only layers that were pushed lately", "A prefetcher that reads manifests. Both run in the registry and in the simulation: caching.md."},
		{gearPaper, "large files fetched in chunks", "Files from 4 MiB on are fetched in parts of 1 MiB: formats/gear-index.md."},
		{gearPaper, "no gain expected at 10 Gbit/s", "Not measured: links here have at most 1 Gbit/s."},
		{gearPaper, "a changed kernel file system", "None: FUSE, and EROFS where the kernel can read from it."},
		{ociregistry, "every pull takes one lock to note its time", "Times of pulls are noted together: mirrors.md."},
		{ociregistry, "pruning distorts the pull-through test", "The same here, because the test is."},
		{ciderPaper, "metadata by HTTP in place of rsync", "By HTTP, from the registry."},
		{ciderPaper, "a driver for Diff and ApplyDiff that is not naive", "Layers are built from their trees, so that no diff of block devices is needed: adr/0012."},
		{ciderPaper, "contention on the local disk, such as lazy merging of overlay layers", "Not done."},
	}
}
