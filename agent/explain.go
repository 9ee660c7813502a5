package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"example.org/slipway/agent/api"
	"example.org/slipway/node/gearfs"
	"example.org/slipway/node/gearfs/starts"
	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/fleet/timeline"
)

// textFiles and pictureFiles bound how many files of a start are drawn. Those with the earliest
// events are.
const textFiles, pictureFiles = 60, 400

// Explain implements api.Service. It says how an image or container is started, and why.
func (a *Agent) Explain(ctx context.Context, name string) (api.Explanation, error) {
	if x, ok := a.explainVolume(ctx, name); ok {
		return x, nil
	}
	img, err := a.find(name)
	ref := name
	if err == nil {
		ref = img.Ref
	}
	why, unpacked := a.images.Unpacked(ref)
	if err != nil && unpacked {
		return api.Explanation{Image: name, Lines: []string{
			fmt.Sprintf("%s was unpacked in the ordinary way when it was pulled last, all of it or the layers from some layer on.", name), tried(why)}}, nil
	}
	if err != nil {
		return api.Explanation{}, err
	}
	x := api.Explanation{Image: img.Ref, Chain: img.Chain}
	say := func(format string, args ...any) { x.Lines = append(x.Lines, fmt.Sprintf(format, args...)) }
	layers, whyGear, err := a.images.Layers(img.Chain)
	if err != nil {
		return x, err
	}
	say("%s is started from the indexes of %d layers, chain %s.", img.Ref, layers, img.Chain)
	if unpacked {
		say("The layers above these were unpacked in the ordinary way when it was pulled last. %s", tried(why))
	}
	if len(whyGear) > 0 {
		say("%s", tried(whyGear))
	}
	say("Images are mounted in the way %q: %s.", a.support.Tier, a.support.Reasons[len(a.support.Reasons)-1])
	share := 100.0
	if img.Bytes > 0 {
		share = 100 * float64(img.LocalBytes) / float64(img.Bytes)
	}
	say("%d of its %d files are here, %.0f %% of %d bytes.", img.LocalFiles, img.Files, share, img.Bytes)
	if d := &img.Decision; d.Mode != "" {
		say("The last start was %s: %s.", d.Mode, d.Reason)
		say("It was decided from %d missing files of %d bytes, %d of %d bytes in the profile; a round trip of %s and %.0f bytes/s; %.0f %% of earlier opens were in the profile.",
			d.MissingFiles, d.MissingBytes, d.ProfileFiles, d.ProfileBytes, d.RTT.Round(10*time.Microsecond), d.RatePerSec, 100*d.HitShare)
	}
	say("%s", fetched(&img.ImageCounts))
	say("%d opens reached the agent, %d failed; %d waited, %s in all, the longest %s.", img.Opens, img.Errors, img.Stalls, img.Stalled.Round(time.Millisecond), img.LongestStall.Round(time.Millisecond))
	if x.Start, err = a.files.Start(img.Chain); err != nil {
		return x, err
	}
	if x.Start != nil {
		explainStart(x.Start, say)
		x.Chart, x.SVG = timeline.Text(drawn(x.Start, textFiles)), timeline.Document(drawn(x.Start, pictureFiles), "Start of "+img.Ref)
	}
	switch {
	case img.LocalFiles == img.Files:
		say("It is complete and needs the registry no more.")
	case img.Background:
		say("The rest is being fetched in the background.")
	default:
		say("The rest is fetched when it is opened.")
	}
	for _, s := range img.Sources {
		say("Its files come from %s.", s)
	}
	return x, nil
}

// fetched says what was fetched of an image. Parts of a large file count as bytes at once, and
// the file counts when it is whole, so there may be bytes and no file.
func fetched(c *gearfs.ImageCounts) string {
	return fmt.Sprintf("Since this worker started, %d bytes were fetched on demand, %d of the profile and %d in the background. "+
		"With them %d, %d and %d files became whole.",
		c.DemandBytes, c.ProfileBytes, c.BackgroundBytes, c.DemandFiles, c.ProfileFiles, c.BackgroundFiles)
}

// tried says what became of the ways in which an image could have come.
func tried(why []string) string { return "It came so because: " + strings.Join(why, "; ") + "." }

// explainVolume is like Explain, for a volume. It returns false if the name is not a volume.
func (a *Agent) explainVolume(ctx context.Context, name string) (api.Explanation, bool) {
	v := a.images.Volume(name)
	if v == nil {
		return api.Explanation{}, false
	}
	r := &v.Record
	x := api.Explanation{Image: v.Ref, Chain: v.Chain}
	say := func(format string, args ...any) { x.Lines = append(x.Lines, fmt.Sprintf(format, args...)) }
	say("%s is started from volume %s with %s, chain %s.", v.Ref, r.Volume(), r.FS, v.Chain)
	if len(v.Why) > 0 {
		say("%s", tried(v.Why))
	}
	say("It lies in storage %s %s.", r.Place.Driver, strings.Join(nonEmpty(r.Place.Cluster, r.Place.Pool, r.Place.Namespace), " "))
	s := a.images.VolumeStatus(ctx)
	if s.Mode == "network" {
		say("Containers get clones of it, which they write to (volumes.mode is network).")
	} else {
		say("Containers share it and write to the disk of this node (volumes.mode is local).")
	}
	for i := range s.Volumes {
		u := &s.Volumes[i]
		if u.Volume != r.Volume() || u.Place != r.Place {
			continue
		}
		what := "The image"
		if u.Container != "" {
			what = "The clone of container " + u.Container
		}
		say("%s is %s, file %s, directory %s; read %d bytes and written %d since the volume worker started.", what, u.State, cmp.Or(u.File, "none"), cmp.Or(u.Dir, "none"), u.ReadBytes, u.WrittenBytes)
		if e := cmp.Or(u.LastError, u.Error); e != "" {
			say("Its storage failed %d times, the last time with: %s.", u.Errors, e)
		}
	}
	if s.Problem != "" {
		say("What was read of it is not known: %s.", s.Problem)
	}
	return x, true
}

func nonEmpty(list ...string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// drawn returns at most the number most of files of a start in the form in which they are drawn
// and reported.
func drawn(s *starts.Start, most int) *fleet.Start {
	out := &fleet.Start{Began: s.Began.UTC(), Over: s.Over}
	for i := range s.Files {
		f := &s.Files[i]
		out.Add(fleet.StartFile{Path: f.Path, From: f.From, Wanted: f.Wanted, Asked: f.Asked, Here: f.Here}, most)
	}
	return out
}

// explainStart describes the last start of an image, and how good its prediction was.
func explainStart(s *starts.Start, say func(format string, args ...any)) {
	from := map[string]int{}
	for i := range s.Files {
		if f := s.Files[i].From; f != "" {
			from[f]++
		}
	}
	var parts []string
	for _, o := range []string{"own", "series", "closure", "vote", "sibling"} {
		if from[o] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", from[o], o))
		}
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	say("Files that the last start expected: %s.", strings.Join(parts, ", "))
	if s.Donor != "" {
		say("They were inherited from %s, the likest image of the repository.", s.Donor)
	}
	q := &s.Quality
	switch {
	case !s.Over:
		say("The start is under way: %d of the %d files were wanted so far.", q.Hit, q.Predicted)
	case !s.Watched:
		say("Not all opens of that start could be seen, so it is not known how good the prediction was; %d files were missing in it.", q.Missed)
	default:
		say("The start expected %d files of %d bytes. %d of these files, of %d bytes, were wanted, a precision of %.0f %%; "+
			"%d others, of %d bytes, were wanted besides; %d bytes came in vain.",
			q.Predicted, q.PredictedBytes, q.Hit, q.HitBytes, 100*q.Precision(), q.Missed, q.MissedBytes, q.WastedBytes)
	}
}
