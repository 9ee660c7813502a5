package start

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestTouchTree(t *testing.T) {
	tree, err := newTouchTree(20)
	if err != nil {
		t.Fatal(err)
	}
	again, err := newTouchTree(20)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, f := range tree.files {
		sum += int64(f.size)
	}
	if sum != tree.bytes || math.Abs(float64(sum)-20e6) > 5e6 {
		t.Errorf("%d files have %d bytes, %d are counted", len(tree.files), sum, tree.bytes)
	}
	for i, l := range tree.layers {
		if !bytes.Equal(l.Gzip, again.layers[i].Gzip) {
			t.Errorf("layer %d is another one the second time", i)
		}
		if share := float64(len(l.Gzip)) / float64(len(l.Tar)); share < 0.2 || share > 0.7 {
			t.Errorf("layer %d is compressed to %.2f of its size, unlike those of images", i, share)
		}
	}
	for _, percent := range []int{1, 10, 50, 80, 100} {
		files, size := tree.portion(percent)
		if want := tree.bytes * int64(percent) / 100; size > want || float64(size) < 0.95*float64(want) {
			t.Errorf("%d %% are %d of %d bytes", percent, size, tree.bytes)
		}
		inOrder := 0
		for i := range files {
			if i > 0 && files[i-1].path < files[i].path {
				inOrder++
			}
		}
		if n := len(files); n > 100 && (inOrder < n/3 || inOrder > 2*n/3) {
			t.Errorf("%d of %d files follow the one before", inOrder, n)
		}
	}
	a, b, c := tree.image(50, ""), tree.image(80, ""), tree.image(50, "known")
	if a.Top.Digest == b.Top.Digest || a.Top.Digest == c.Top.Digest {
		t.Error("two images are the same")
	}
}

// sampleTouch returns starts of two portions. Slipway is slower than the parallel pull once, and
// stargz is fastest with an image that it knows.
func sampleTouch() *Touch {
	t := &Touch{}
	add := func(task, system string, sec float64, bytes int64) {
		t.Samples = append(t.Samples, Sample{Cell: Cell{"touch", task, 100, 20}, System: system, RunSec: sec, RunBytes: bytes})
	}
	for _, task := range []string{"10 %", "100 %"} {
		add(task, "plain", 10, 100)
		add(task, "parallel", 8, 100)
		add(task, "stargz+", 2, 15)
	}
	add("10 %", "slipway", 8.8, 100)
	add("10 %", "slipway+", 1.9, 14)
	add("10 %", "slipway+, held", 2, 15)
	add("100 %", "slipway+, held", 2.4, 15)
	add("100 %", "slipway", 8, 101)
	add("100 %", "slipway+", 2.09, 16)
	return t
}

func TestTouchIsChecked(t *testing.T) {
	r := &Results{Touch: sampleTouch()}
	var w strings.Builder
	check(&w, r)
	for _, want := range []string{
		"MISSED  slipway, a portion of an image: over 1.05 times the best: 1 times: 10 % at 100 Mbit/s, 20 ms: 1.10 of parallel\n",
		"met     slipway, a portion of an image: over 1.02 times the bytes of the best: never",
		"met     slipway+, a portion of an image: over 1.05 times the best: never",
		"MISSED  slipway+, a portion of an image: over 1.02 times the bytes of the best: 1 times: 100 % at 100 Mbit/s, 20 ms: 1.07 of stargz+\n",
		"MISSED  a start with a connection of 1 MiB/s: over 1.10 times one without: 1 times: 100 % at 100 Mbit/s, 20 ms: 1.15\n",
		"met     a start with a portion that failed: never",
	} {
		if !strings.Contains(w.String(), want) {
			t.Errorf("no line %q in:\n%s", want, w.String())
		}
	}
	text := report(r, "")
	if want := "| 100 Mbit/s, 20 ms | 10 % | 10.0 | 8.00 | 2.00 | 8.80 | 1.90 | 2.00 | 1.10 parallel | 0.950 stargz+ |"; !strings.Contains(text, want) {
		t.Errorf("no %q in the report:\n%s", want, text)
	}
	r.Touch = &Touch{}
	w.Reset()
	if check(&w, r) || strings.Count(w.String(), "OPEN    portions") != 2 {
		t.Errorf("nothing compared:\n%s", w.String())
	}
}
