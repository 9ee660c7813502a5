package trace

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"time"
)

// identifier makes ids for the records of one file that have none, so that the same record
// in another copy of the log has the same: of all that it says, and of how many of the
// same came before it. A client may well ask for the same twice within a second, which
// is as exact as most logs are: these are two requests in any copy.
type identifier struct {
	// seen counts what ended within window of began.
	seen  map[uint64]int
	began time.Time
}

const (
	// idWindow is how far apart lines of the same record can be in one log. Where the time
	// goes back by more the log is there once more.
	idWindow = 2 * time.Second
	// maxIdentified bounds the memory: 1 MiB.
	maxIdentified = 1 << 16
)

// id of a record that has none.
func (x *identifier) id(r *Record) string {
	end := r.Time.Add(max(r.Duration, 0))
	if d := end.Sub(x.began); x.seen == nil || d > idWindow || d < -idWindow || len(x.seen) >= maxIdentified {
		x.seen, x.began = map[uint64]int{}, end
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%s\x00%s\x00%s\x00%s\x00%d %d %d %d %d", r.Host, r.Method, r.RemoteAddr, r.User, r.URI, r.UserAgent,
		r.Referer, r.Digest, r.Time.UnixNano(), r.Duration, r.Status, r.Written, r.Received)
	content := h.Sum64()
	n := x.seen[content]
	x.seen[content] = n + 1
	fmt.Fprintf(h, " %d", n)
	return "=" + hex.EncodeToString(h.Sum(nil))
}
