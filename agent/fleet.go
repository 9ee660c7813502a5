package agent

import (
	"context"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"example.org/slipway/config"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci"
	"example.org/slipway/oci/fleet"
)

// Version is the version of the program in reports to registries. A program that runs an
// agent sets it first.
var Version = "dev"

// unwanted is how long no reports are sent to a registry that does not want them.
const unwanted = time.Hour

// lookEvery is how often the agent checks whether a container started or ended, which is
// reported to registries at once.
const lookEvery = 5 * time.Second

// tellRegistries reports images that containers run from to their registries, every
// [fleet.Interval] and when a container starts or ends, until ctx ends.
func (a *Agent) tellRegistries(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	spared := map[string]time.Time{}    // by source: the end of the pause
	reported := map[string]startState{} // by chain
	var told time.Time
	var before uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st, _ := a.files.Summary()
		running := a.containers(st)
		if now := fingerprint(running); now != before || time.Since(told) >= fleet.Interval {
			maps.DeleteFunc(reported, func(chain string, _ startState) bool { return len(running[chain]) == 0 })
			a.tellAll(ctx, &st, running, spared, reported)
			told, before = time.Now(), now
		}
	}
}

// fingerprint returns a number that changes, except by rare coincidence, when other
// containers run.
func fingerprint(running map[string][]fleet.Container) (sum uint64) {
	for chain, list := range running {
		for i := range list {
			h := fnv.New64a()
			_, _ = io.WriteString(h, chain+"\x00"+list[i].ID)
			sum += h.Sum64()
		}
	}
	return sum
}

// tellAll reports each image to the first of its sources that accepts the report. spared
// holds the sources that are skipped, and until when. reported holds what was reported of starts.
func (a *Agent) tellAll(ctx context.Context, st *gearfs.Status, running map[string][]fleet.Container, spared map[string]time.Time, reported map[string]startState) {
	node, err := os.Hostname()
	if err != nil {
		a.log.Debug("reports to registries", "err", err)
		return
	}
	for i := range st.Images {
		img := &st.Images[i]
		containers := running[img.Chain]
		if len(containers) == 0 || !a.countFiles(img) {
			continue
		}
		r := fleet.Report{Node: node, Version: Version, Tier: a.support.Tier.String(),
			CacheBytes: st.Cache.Bytes, CacheLimit: int64(a.cfg.Cache.MaxBytes), Image: img.Ref,
			Files: img.Files, LocalFiles: img.LocalFiles, Bytes: img.Bytes, LocalBytes: img.LocalBytes,
			Mode: string(img.Decision.Mode), Background: img.Background, Complete: img.Complete, Opens: img.Opens, Errors: img.Errors, Containers: containers}
		if a.peers != nil {
			moved := a.peers.Moved()
			r.PeerBytes, r.RegistryBytes, r.SentBytes = moved.FromPeers, moved.FromRegistry, moved.Sent
		}
		now, runs := time.Now(), fingerprint(map[string][]fleet.Container{img.Chain: containers})
		if reported[img.Chain].due(runs, now) {
			if s, err := a.files.Start(img.Chain); err == nil && s != nil {
				r.Start = drawn(s, fleet.MaxStartFiles)
			}
		}
		if a.tellOne(ctx, img.Sources, &r, spared) && r.Start != nil {
			reported[img.Chain] = startState{now, runs, r.Start.Over || now.Sub(r.Start.Began) > startPatience}
		}
	}
}

// startPatience is how long a start may go on without its end being known.
const startPatience = 2 * time.Minute

// startState is what was reported of the start of an image: when, the fingerprint of its
// containers, and whether the start was over.
type startState struct {
	at   time.Time
	runs uint64
	over bool
}

// due reports whether a start is to be reported now. It changes while it is not over, and when a
// container starts. A registry that restarted has forgotten it.
func (s startState) due(runs uint64, now time.Time) bool {
	return !s.over || s.runs != runs || now.Sub(s.at) >= fleet.Lifetime
}

// countFiles fills in how much of an image is on the node. It returns false if the image
// is gone.
func (a *Agent) countFiles(img *gearfs.ImageStatus) (ok bool) {
	if img.Complete { // saves a cache lookup for each file
		img.LocalFiles, img.LocalBytes = img.Files, img.Bytes
		return true
	}
	here, err := a.files.Image(img.Chain)
	*img = here
	return err == nil
}

// tellOne sends a report to the first of an image's sources that accepts it. It returns false if
// none did.
func (a *Agent) tellOne(ctx context.Context, sources []gearfs.SourceRef, r *fleet.Report, spared map[string]time.Time) bool {
	for _, ref := range sources {
		if time.Now().Before(spared[ref.String()]) {
			continue
		}
		r.Manifest = ref.Manifest
		err := a.tell(ctx, ref, r)
		if err == nil {
			return true // the others are mirrors
		}
		if oci.HasCode(err, oci.CodeUnsupported, oci.CodeNameUnknown, oci.CodeDenied, oci.CodeUnauthorized) {
			spared[ref.String()] = time.Now().Add(unwanted)
		}
		a.log.Debug("report to a registry", "image", r.Image, "source", ref, "err", err)
	}
	return false
}

// tellPatience bounds the time for one report.
const tellPatience = 10 * time.Second

func (a *Agent) tell(ctx context.Context, ref gearfs.SourceRef, r *fleet.Report) error {
	ctx, cancel := context.WithTimeout(ctx, tellPatience)
	defer cancel()
	return a.regs.Report(ctx, ref, r)
}

// containers returns the running containers and the mounts without containerd, by the
// chain of their image.
func (a *Agent) containers(st gearfs.Status) map[string][]fleet.Container {
	by := map[string][]fleet.Container{}
	for _, c := range st.Containers {
		by[c.Chain] = append(by[c.Chain], fleet.Container{ID: c.ID, Started: c.Started})
	}
	for _, m := range a.images.Mounts() {
		id := "mount:" + m.Dir
		if m.Way != config.WayVolume && !slices.ContainsFunc(by[m.Chain], func(c fleet.Container) bool { return c.ID == id }) {
			by[m.Chain] = append(by[m.Chain], fleet.Container{ID: id})
		}
	}
	return by
}

// connectEvery is how often registries are asked for something small. A client closes a
// connection that was idle for 90 s, and a server after 3 min.
const connectEvery = time.Minute

// stayConnected keeps a connection open to each registry of the configuration, until ctx
// ends. The first request of a start then needs one round trip, and not one more for TCP,
// one for TLS and two for a token.
func (a *Agent) stayConnected(ctx context.Context) {
	tick := time.NewTicker(connectEvery)
	defer tick.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, tellPatience)
		a.regs.Connect(bounded)
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
