package simulate_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"example.org/slipway/workload/simulate"
)

// TestLinesOverSize checks that the page draws a line for each policy with several sizes, from the
// smallest size to the largest, and none for a single size.
func TestLinesOverSize(t *testing.T) {
	t.Parallel()
	result := func(policy string, ram, ssd int64, ratio float64) simulate.CacheResult {
		return simulate.CacheResult{Config: simulate.CacheConfig{Policy: policy, RAM: ram, SSD: ssd}, ObjectRatio: ratio, ByteRatio: ratio}
	}
	page := func(results ...simulate.CacheResult) string {
		var b bytes.Buffer
		if err := (&simulate.CacheReport{Zone: "z", Results: results}).WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const title = "Requests served, by size of the memory"
	html := page(result("lru", 2e6, 0, 0.4), result("lru", 1e6, 0, 0.2), result("gdsf", 1e6, 1e7, 0.5), result("gdsf", 2e6, 2e7, 0.6),
		result("belady", 1e6, 0, 0.7), result("belady", 2e6, 0, 0.8), result("fifo", 1e6, 0, 0.1))
	_, plot, ok := strings.Cut(html, title)
	plot, _, _ = strings.Cut(plot, "Bytes served, by size of the memory")
	if !ok {
		t.Fatal("the page has no lines over the size")
	}
	for _, name := range []string{">lru<", ">gdsf + SSD of 10 times<", ">belady (bound)<"} {
		if !strings.Contains(plot, name) {
			t.Errorf("the legend lacks %s", name)
		}
	}
	if strings.Contains(plot, ">fifo<") {
		t.Error("a policy with one size has a line")
	}
	// Of the three lines each goes to the right.
	lines := regexp.MustCompile(`class="line s\d[^>]* d="M([\d.]+) [\d.]+L([\d.]+) `).FindAllStringSubmatch(plot, -1)
	if len(lines) != 6 { // wide and narrow
		t.Errorf("there are %d lines, want 6", len(lines))
	}
	for _, l := range lines {
		if len(l[1]) > len(l[2]) || len(l[1]) == len(l[2]) && l[1] >= l[2] {
			t.Errorf("a line goes from %s to %s", l[1], l[2])
		}
	}
	if html := page(result("lru", 1e6, 0, 0.2), result("fifo", 1e6, 0, 0.1)); strings.Contains(html, title) {
		t.Error("a single size has lines")
	}
}
