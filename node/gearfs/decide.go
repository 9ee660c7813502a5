package gearfs

import (
	"fmt"
	"time"

	"example.org/slipway/node/gearfs/starts"
)

// Mode is how the files of an image are fetched.
type Mode string

// These are the modes.
const (
	// Auto chooses a mode at each start.
	Auto Mode = ""
	// Lazy fetches the files of the profile before the start, and the others when they
	// are opened.
	Lazy Mode = "lazy"
	// Eager requests all files before the start. The start waits for all of them if the
	// mode was set rather than decided here, or if they take only an instant. Otherwise
	// it waits for the files of the profile.
	Eager Mode = "eager"
)

// Decision is how a start was done, and why.
type Decision struct {
	Mode   Mode   `json:"mode"`
	Reason string `json:"reason"`
	// These are the inputs of the decision: the image's files that are not local, how
	// many of these files the profile names, and the measured link. 0 means unknown.
	MissingFiles int           `json:"missing_files"`
	MissingBytes int64         `json:"missing_bytes"`
	ProfileFiles int           `json:"profile_files"`
	ProfileBytes int64         `json:"profile_bytes"`
	RTT          time.Duration `json:"rtt_ns"`
	RatePerSec   float64       `json:"rate_bytes_per_second"`
	// HitShare is the share that the profile named of the files opened at earlier starts.
	// It is an assumption if there were no earlier starts.
	HitShare float64 `json:"hit_share"`
	// Eager and Lazy are how long the start was expected to wait for files in each mode.
	Eager time.Duration `json:"eager_ns"`
	Lazy  time.Duration `json:"lazy_ns"`
}

// hits records how well profiles did at earlier starts.
type hits struct {
	// Opened counts the opened files. Covered of them were in the profile.
	Opened  int64 `json:"opened"`
	Covered int64 `json:"covered"`
}

// share returns the covered share, with a prior for few measurements.
func (h hits) share() float64 {
	return (float64(h.Covered) + priorShare*priorWeight) / (float64(h.Opened) + priorWeight)
}

const (
	// priorShare is the share of opens that a profile is assumed to cover. The assumption
	// has the weight of priorWeight opens.
	priorShare, priorWeight = 0.95, 100
	// neededBytes and neededFiles are the part of an image that a start without a known
	// profile is assumed to need. A warm-up of a usual image reads 6 to 30 % of it
	// (FAST'16 Slacker: 6.4 %).
	neededBytes, neededFiles = 0.20, 0.05
	// maxMisses bounds the number of opens that are assumed for a start without a
	// profile.
	maxMisses = 1000
	// trivialBytes are so few that they are always fetched.
	trivialBytes = 256 << 10
	// eagerGain bounds how long an eager start may be expected to take, as a share of the
	// time of a lazy start. Both times are estimates, and an eager start may fetch files
	// in vain, which delays the opened files.
	eagerGain = 0.7
	// eagerPrice is how many bytes may be fetched in vain for each second that an eager
	// start is expected to save. Other starts share the line, the registry and the disk.
	// Without a price, every image would be fetched whole over a fast line.
	eagerPrice = 32 << 20
	// mostOf is the share of the missing bytes that the files of a profile must have to
	// count as most of an image. What is left is then little, and each file that the
	// profile lacks would cost a round trip.
	mostOf = 0.75
	// briefly bounds how long a start waits for all files. If they take longer, they
	// arrive while the start continues.
	briefly = 150 * time.Millisecond
)

// measured is what a decision needs to know about a link.
type measured struct {
	rtt  time.Duration
	rate float64 // bytes of content a second
}

// decisionInput is what is known before a start.
type decisionInput struct {
	forced              Mode
	files, missingFiles int
	bytes, missingBytes int64
	profiled            int // names in the profile
	// guess says that the profile was made without an earlier version of the image. It
	// names some of the files that are opened, but the share is unknown.
	guess        bool
	profileFiles int // number of them that are missing
	profileBytes int64
	askedBytes   int64 // bytes of the missing files of the profile that are fetched as a whole
	link         measured
	hits         hits
}

// decide chooses the mode of a start.
func decide(in decisionInput) Decision {
	d := Decision{
		MissingFiles: in.missingFiles, MissingBytes: in.missingBytes, ProfileFiles: in.profileFiles, ProfileBytes: in.profileBytes,
		RTT: in.link.rtt, RatePerSec: in.link.rate, HitShare: in.hits.share(), Mode: Lazy,
	}
	if in.link.rate > 0 {
		d.Eager, d.Lazy = in.estimate(d.HitShare)
	}
	switch {
	case in.forced != Auto:
		d.Mode, d.Reason = in.forced, "set by configuration"
	case in.missingFiles == 0:
		d.Mode, d.Reason = Eager, "all files are local"
	case in.missingBytes <= trivialBytes:
		d.Mode, d.Reason = Eager, fmt.Sprintf("only %d bytes are missing", in.missingBytes)
	case in.link.rate == 0:
		d.Reason = "the link was not measured yet"
	case !in.guess && float64(in.askedBytes) >= mostOf*float64(in.missingBytes):
		d.Mode, d.Reason = Eager, fmt.Sprintf("the profile names %d of the %d missing bytes", in.askedBytes, in.missingBytes)
	case float64(d.Eager) > eagerGain*float64(d.Lazy):
		d.Reason = fmt.Sprintf("a lazy start waits %v, all %d missing files would take %v", d.Lazy, in.missingFiles, d.Eager)
	case (d.Lazy-d.Eager).Seconds()*eagerPrice < float64(in.vain(d.HitShare)):
		d.Reason = fmt.Sprintf("all %d missing files would take %v and a lazy start waits %v, but some %d bytes would come in vain",
			in.missingFiles, d.Eager, d.Lazy, in.vain(d.HitShare))
	default:
		d.Mode, d.Reason = Eager, fmt.Sprintf("all %d missing files take %v, a lazy start would wait %v", in.missingFiles, d.Eager, d.Lazy)
	}
	return d
}

// waitsForAll reports whether an eager start waits for all files.
func (d *Decision) waitsForAll(forced Mode) bool {
	return forced == Eager || d.MissingBytes <= trivialBytes || d.RatePerSec > 0 && d.Eager <= briefly
}

// estimate returns how long each mode waits for files.
func (in *decisionInput) estimate(share float64) (eager, lazy time.Duration) {
	take := func(files, bytes float64) time.Duration { return starts.Takes(files, bytes, in.link.rate) }
	eager = in.link.rtt + take(float64(in.missingFiles), float64(in.missingBytes))
	missed, missedBytes := in.missed(share)
	if in.profiled > 0 {
		lazy = in.link.rtt + take(float64(in.profileFiles), float64(in.profileBytes))
	}
	// Files that the profile lacks are fetched one by one.
	lazy += time.Duration(missed*float64(in.link.rtt)) + take(missed, missedBytes)
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return round(eager), round(lazy)
}

// missed returns the number and the bytes of the files that a start is expected to open
// although no profile names them.
func (in *decisionInput) missed(share float64) (files, bytes float64) {
	if in.profiled == 0 || in.guess {
		files = min(neededFiles*float64(in.missingFiles), maxMisses) - float64(in.profileFiles)
		return max(files, 0), max(neededBytes*float64(in.missingBytes)-float64(in.profileBytes), 0)
	}
	rest := in.missingFiles - in.profileFiles
	files = min(float64(in.profiled)*(1-share)/max(share, 0.1), float64(rest))
	return files, files * float64(in.missingBytes-in.profileBytes) / float64(max(1, rest))
}

// vain returns how many bytes an eager start is expected to fetch that a lazy start does
// not.
func (in *decisionInput) vain(share float64) int64 {
	_, missed := in.missed(share)
	return in.missingBytes - in.profileBytes - int64(missed)
}
