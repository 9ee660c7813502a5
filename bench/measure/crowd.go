package measure

import (
	"fmt"
	"slices"
	"strings"
)

// Crowded says what many clients received when they requested one object at the same
// time, and what that cost.
type Crowded struct {
	Clients int   `json:"clients"`
	Size    int64 `json:"size"`
	// Reads is how often the server requested the object from its source. ReadBytes is
	// how many bytes of it the source sent.
	Reads     int64 `json:"reads"`
	ReadBytes int64 `json:"read_bytes"`
	// First holds the times to each client's first byte, and All the times to the last
	// byte, in milliseconds.
	First []float64 `json:"first_ms"`
	All   []float64 `json:"all_ms"`
	// Idle is the server's resident set before, and Peak its largest resident set afterwards, in
	// bytes.
	Idle int64 `json:"idle_rss"`
	Peak int64 `json:"peak_rss"`
	// CPU is the server's CPU time in seconds.
	CPU float64 `json:"cpu_seconds"`
}

// Add keeps the times of downloads.
func (c *Crowded) Add(fetched []Fetched) {
	for _, f := range fetched {
		c.First = append(c.First, f.First.Seconds()*1e3)
		c.All = append(c.All, f.All.Seconds()*1e3)
	}
	slices.Sort(c.First)
	slices.Sort(c.All)
}

// Table writes the table, with words for the reads and their bytes.
func (c *Crowded) Table(w *strings.Builder, reads, readMB string) {
	all := SpreadOf(c.All)
	Table(w, 0, []string{"clients", reads, readMB, "first byte, ms", "last byte, ms", "MB/s to all", "idle RSS MB", "peak RSS MB", "server CPU s"}, [][]string{{
		fmt.Sprint(c.Clients), fmt.Sprint(c.Reads), Megabytes(c.ReadBytes), SpreadOf(c.First).String(), all.String(),
		Figure(float64(c.Clients) * float64(c.Size) / 1e3 / max(all.Max, 1e-3)), Megabytes(c.Idle), Megabytes(c.Peak), Figure(c.CPU),
	}})
}
