package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Explanation tells how an image is started, in sentences.
type Explanation struct {
	Image string   `json:"image"`
	Chain string   `json:"chain"`
	Lines []string `json:"lines"`
}

// explain tells how an image or container is started, and why so.
func (a *Agent) explain(name string) (Explanation, error) {
	img, err := a.find(name)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Image: img.Ref, Chain: img.Chain}
	say := func(format string, args ...any) { x.Lines = append(x.Lines, fmt.Sprintf(format, args...)) }
	line, err := a.chains.records.line(img.Chain)
	if err != nil {
		return x, err
	}
	say("%s is started from the indexes of %d layers, chain %s.", img.Ref, len(line), img.Chain)
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
	say("Since this worker started: %d files of %d bytes on demand, %d of %d bytes of the profile, %d of %d bytes in the background.",
		img.DemandFiles, img.DemandBytes, img.ProfileFiles, img.ProfileBytes, img.BackgroundFiles, img.BackgroundBytes)
	say("%d opens reached the agent, %d failed; %d waited, %s in all, the longest %s.", img.Opens, img.Errors, img.Stalls, img.Stalled.Round(time.Millisecond), img.LongestStall.Round(time.Millisecond))
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

const apiExplain = "/v1/explain"

// Explain asks how an image or container is started, and why so.
func (c *Caller) Explain(ctx context.Context, name string) (x Explanation, err error) {
	return x, c.call(ctx, http.MethodGet, apiExplain+"?image="+url.QueryEscape(name), nil, &x)
}
