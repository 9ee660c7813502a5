package logs

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"time"

	"example.org/slipway/workload/trace"
)

// identifier makes ids for the records of one file that have none. An id depends on the content of
// the record and on the number of equal records before it, so it is the same in every copy of the
// log. Equal records are common: most logs have times in seconds, and a client may ask for the same
// thing twice within a second.
type identifier struct {
	// seen counts the records that ended within window of began.
	seen  map[uint64]int
	began time.Time
}

const (
	// idWindow is how far apart equal records can be in one log. If the time goes back by
	// more, the file has the log a second time.
	idWindow = 2 * time.Second
	// maxIdentified bounds the memory: 1 MiB.
	maxIdentified = 1 << 16
)

// id returns an id for a record that has none.
func (x *identifier) id(r *trace.Record) string {
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
