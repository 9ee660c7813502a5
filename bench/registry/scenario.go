package registry

import (
	"context"
	"slices"
)

// scenario is one thing to measure, on some servers, in some cases.
type scenario struct {
	name  string
	title string
	// about says, for the document, what is done.
	about string
	// main is the figure by which servers are compared. The tables show more figures.
	main metric
	more []metric
	// servers are the names of the servers, in the order of the tables.
	servers []string
	// slow scenarios measure the other servers only in a full run.
	slow bool
	// serving scenarios share servers and content.
	serving bool
	run     func(*bench, context.Context, *scenario) error
}

// rows returns the servers of the scenario's tables. The builds of Slipway that a run compared come
// after the first.
func (sc *scenario) rows(r *Results) []string {
	var out []string
	for _, name := range sc.servers {
		if name != nameSlipway {
			if !sc.slow || r.Run.Full {
				out = append(out, name)
			}
			continue
		}
		out = append(out, name)
		for _, s := range r.Run.Servers {
			if s.Variant {
				out = append(out, s.Name)
			}
		}
	}
	return out
}

// columns returns the figures of the scenario's tables. All tables also show what the rest of the
// machine did meanwhile.
func (sc *scenario) columns() []metric {
	return append(append([]metric{sc.main}, sc.more...), otherCPUs)
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []*scenario {
	readers := []string{nameSlipway, nameAccessLog, nameNginx, nameZot, nameDist3, nameDist2}
	quietReaders := slices.DeleteFunc(slices.Clone(readers), func(s string) bool { return s == nameAccessLog })
	writers := []string{nameSlipway, nameZotCommit, nameZot, nameDist3, nameDist2}
	return []*scenario{
		{
			name: "pull", title: "Pull of a small image", serving: true, servers: readers, run: runPull,
			about: "A pull is the manifest by tag, the configuration and five layers of 1 KiB: 7 requests, every digest verified. " +
				"All images were pulled before. C is the number of clients.",
			main: cpuMs, more: []metric{perSecond, p50, p99, rssMB, peakMB},
		},
		{
			name: "head", title: "HEAD of a manifest by tag", serving: true, servers: readers, run: runHead,
			about: "HEAD of a manifest by tag with 10 clients: of many repositories with one tag each, and of repositories with few and with many tags, " +
				"each tag with its own manifest. All tags were stored before the first measurement, and every tag was requested once before. Registries that take long to store tags get 1,000 at most.",
			main: cpuMs, more: []metric{perSecond, p50, p99, rssMB},
		},
		{
			name: "blob", title: "GET of a large blob", serving: true, servers: quietReaders, run: runBlob,
			about: "GET of one blob by 4 clients, which count the bytes and do not hash them.",
			main:  cpuPerGB, more: []metric{mbPerSec, p50, p99, rssMB, peakMB},
		},
		{
			name: "memory", title: "Memory", slow: true, servers: quiet(writers), run: runMemory,
			about: "Resident set after pushing small images with 10 clients to a new store, and after a new process has served each of them once to 10 clients.",
			main:  rssMB, more: []metric{peakMB},
		},
		{
			name: "push", title: "Small pushes", servers: writers, run: runPush,
			about: "A push is a small image into a new repository: six blobs, each a POST and a PUT or one POST, and the manifest. " +
				"Slipway and Distribution answer when the data is on the disk; zot does not wait for that unless `commit` is true, and then for blobs.",
			main: perSecond, more: []metric{cpuMs, p50, p99, rssMB, peakMB},
		},
		{
			name: "pushlarge", title: "Large pushes", servers: writers, run: runPushLarge,
			about: "Push of images with one layer, whole or in PATCH requests: 16 of 1 MiB by 4 clients, 4 of 16 MiB by 2, 1 of 128 MiB.",
			main:  mbPerSec, more: []metric{cpuPerGB, p50, rssMB, peakMB},
		},
		{
			name: "start", title: "Start", servers: []string{nameSlipway}, run: runStart,
			about: "From the start of the process until it is ready and has answered a HEAD for a tag.",
			main:  seconds, more: []metric{cpuMs, rssMB, peakMB},
		},
		{
			name: "lists", title: "Lists", servers: []string{nameSlipway}, run: runLists,
			about: "Pages of 100 names of the tags of one repository and of the repositories.",
			main:  cpuMs, more: []metric{p50, p99, rssMB},
		},
		{
			name: "gc", title: "Garbage collection", servers: []string{nameSlipway}, run: runGC,
			about: "Collection of 100 pushed blobs of 32 KiB that no manifest names, in stores of two sizes. Every tenth blob is a file, and the others are in the catalogue. Seconds are as `slipway gc` reports them.",
			main:  seconds, more: []metric{cpuMs, rssMB},
		},
	}
}

// quiet returns the registries without variants that only differ in configuration.
func quiet(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == nameZotCommit })
}
