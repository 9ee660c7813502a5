package starts

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
)

const (
	// maxBallots is how many donors vote: the donors that were learnt last. ballotsFor is
	// how long their ballots are not read again.
	maxBallots = 1000
	ballotsFor = 5 * time.Minute
	// leastOwners is how many owners must have opened a content before that counts for
	// images of other owners. A single owner could otherwise waste other people's bytes.
	leastOwners = 2
	// leastVotes is how many repositories must have opened a content. What a single
	// program opens says little about another program: with one vote, an image of the
	// corpus fetched 5.5 MB in vain.
	leastVotes = 2
	// leastShare concerns the repositories that have a content and whose images were
	// started: it is the share of them that must have opened the content.
	leastShare = 0.8
	// maxAsked is the number of contents whose holders are looked up. maxHolders is how many
	// holders of each are considered.
	maxAsked   = 500
	maxHolders = 1000
)

// ballots says which contents the images of which repositories opened.
type ballots struct {
	mu     sync.Mutex
	read   time.Time
	voters map[string]bool // repositories
	opened map[uint64][]ballot
}

// ballot says that a repository opened a content, and at which position.
type ballot struct {
	repo string
	rank int
}

// readBallots reads the donors of all repositories, unless that was done recently.
func (b *Book) readBallots(ctx context.Context) (*ballots, error) {
	v := &b.ballots
	if now := b.opts.Clock(); v.voters == nil || now.Sub(v.read) > ballotsFor {
		rows, err := b.facts.LastDonors(ctx, maxBallots)
		if err != nil {
			return nil, fmt.Errorf("read what images opened: %w", err)
		}
		v.read, v.voters, v.opened = now, map[string]bool{}, map[uint64][]ballot{}
		for i := range rows {
			d, err := predict.DecodeDonor(rows[i].Data)
			if err != nil {
				continue // it is reported when its own repository needs it
			}
			v.voters[rows[i].Repo] = true
			for rank := range d.Opened {
				k := d.Opened[rank].Key
				if !slices.ContainsFunc(v.opened[k], func(o ballot) bool { return o.repo == rows[i].Repo }) {
					v.opened[k] = append(v.opened[k], ballot{rows[i].Repo, rank})
				}
			}
		}
	}
	return v, nil
}

// voted returns the contents of an image that enough images of other repositories opened,
// among the images that have the content. The contents are in about the order in which
// those images opened them.
func (b *Book) voted(ctx context.Context, repo string, img *start) ([]gear.Name, error) {
	b.ballots.mu.Lock()
	defer b.ballots.mu.Unlock()
	all, err := b.readBallots(ctx)
	if err != nil {
		return nil, err
	}
	type candidate struct {
		name gear.Name
		rank int
	}
	var list []candidate
	asked := 0
	for i := range img.files {
		if img.files[i].Size == 0 { // nobody needs the empty file sooner
			continue
		}
		n := img.files[i].Name
		cast := all.opened[binary.BigEndian.Uint64(n[:])]
		if !b.enough(repo, cast) {
			continue
		}
		if asked++; asked > maxAsked {
			break
		}
		holders, err := b.facts.Holders(ctx, []gear.Name{n}, maxHolders)
		if err != nil {
			return nil, fmt.Errorf("look up who has a file: %w", err)
		}
		have, opened, rank := 0, 0, 0
		for _, h := range holders[0].Repositories {
			if h == repo || !all.voters[h] {
				continue
			}
			have++
			if i := slices.IndexFunc(cast, func(o ballot) bool { return o.repo == h }); i >= 0 {
				opened, rank = opened+1, rank+cast[i].rank
			}
		}
		if opened >= leastVotes && float64(opened) >= leastShare*float64(have) {
			list = append(list, candidate{n, rank / opened})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.rank, b.rank) })
	out := make([]gear.Name, len(list))
	for i := range list {
		out[i] = list[i].name
	}
	return out, nil
}

// enough reports whether the owners who opened a content may speak for a repository. The
// repository's own owner may do so alone, and other owners only together. A repository
// does not vote for itself.
func (b *Book) enough(repo string, votes []ballot) bool {
	own := b.opts.Owner(repo)
	var others []string
	for _, v := range votes {
		o := b.opts.Owner(v.repo)
		if o == own && v.repo != repo {
			return true
		}
		if o != own && !slices.Contains(others, o) {
			others = append(others, o)
		}
	}
	return len(others) >= leastOwners
}
