package deflate

import "slices"

// Style says how an encoder makes codes from frequencies, and headers from codes.
// Different codes can have the same total length, so the style is a part of the model.
type Style uint8

// These are the known styles.
const (
	// ZlibStyle is the style of zlib and of all descendants of Gailly's deflate: GNU
	// gzip, pigz, Java.
	ZlibStyle Style = iota
	// GoStyle is the style of Go's compress/flate.
	GoStyle
	// Styles is the number of styles.
	Styles
)

// Codes has the codes of a dynamic block, and their encoding in the block's header.
type Codes struct {
	Lit, Dist Lengths
	meta      [19]uint8 // lengths of the code of code lengths
	runs      []run

	litFreq  [286]int32
	distFreq [30]int32
	metaFreq [19]int32
	heap     heapCoder
	merge    []mergeLeaf
}

// run is a symbol of the code of code lengths, with the value of its extra bits.
type run struct{ sym, extra uint8 }

// Build makes the codes of a block. Its first tokens decode to plain. Tokens behind these
// are ignored.
func (c *Codes) Build(toks []Token, plain []byte, style Style) {
	c.count(toks, plain)
	c.Lit, c.Dist, c.meta, c.metaFreq, c.runs = Lengths{}, Lengths{}, [19]uint8{}, [19]int32{}, c.runs[:0]
	if style == GoStyle {
		c.buildGo()
		return
	}
	c.Lit.N = c.heap.lengths(c.litFreq[:], 15, c.Lit.L[:])
	c.Dist.N = c.heap.lengths(c.distFreq[:], 15, c.Dist.L[:])
	c.runsZlib(c.Lit.L[:c.Lit.N])
	c.runsZlib(c.Dist.L[:c.Dist.N])
	c.heap.lengths(c.metaFreq[:], 7, c.meta[:])
}

func (c *Codes) count(toks []Token, plain []byte) {
	c.litFreq, c.distFreq = [286]int32{}, [30]int32{}
	i := 0
	for _, t := range toks {
		if i >= len(plain) {
			break
		}
		if t == 0 {
			c.litFreq[plain[i]]++
			i++
			continue
		}
		l := int(t >> 16)
		c.litFreq[257+int(sym.lenOf[l])]++
		c.distFreq[sym.disOf[disSlot(t.Dist())]]++
		i += l
	}
	c.litFreq[256] = 1
}

func (c *Codes) run(s, extra int) {
	c.metaFreq[s]++
	c.runs = append(c.runs, run{uint8(s), uint8(extra)})
}

// heapCoder computes lengths with a heap, as zlib's trees.c does. The depth of the trees
// and the moves of the heap itself decide the order of equal frequencies.
type heapCoder struct {
	freq, parent [2*286 + 1]int32
	length       [2*286 + 1]uint8
	depth        [2*286 + 1]uint8
	heap         [286 + 2]int // heap[1] is the least node; the heap has n nodes
	n            int
	sorted       [2*286 + 1]int // nodes from the rarest to the most frequent, filled from the front
}

// lengths writes the lengths of codes and returns how many symbols there are up to the
// last symbol with a code. There are always at least two codes.
func (h *heapCoder) lengths(freq []int32, limit int, out []uint8) int {
	h.n = 0
	last := -1
	for s, f := range freq {
		h.freq[s], h.depth[s], h.length[s] = f, 0, 0
		if f != 0 {
			h.n++
			h.heap[h.n] = s
			last = s
		}
	}
	for h.n < 2 {
		s := 0
		if last < 2 {
			last++
			s = last
		}
		h.n++
		h.heap[h.n], h.freq[s] = s, 1
	}
	for k := h.n / 2; k > 0; k-- {
		h.sink(k)
	}
	h.limit(h.join(len(freq)), last, limit)
	for s := range freq {
		out[s] = 0
		if s <= last {
			out[s] = h.length[s]
		}
	}
	return last + 1
}

func (h *heapCoder) less(a, b int) bool {
	return h.freq[a] < h.freq[b] || h.freq[a] == h.freq[b] && h.depth[a] <= h.depth[b]
}

// sink moves heap[k] down to its place.
func (h *heapCoder) sink(k int) {
	v := h.heap[k]
	for j := 2 * k; j <= h.n; j *= 2 {
		if j < h.n && h.less(h.heap[j+1], h.heap[j]) {
			j++
		}
		if h.less(v, h.heap[j]) {
			break
		}
		h.heap[k] = h.heap[j]
		k = j
	}
	h.heap[k] = v
}

// join makes the tree and returns its nodes in order. The last node is the root.
func (h *heapCoder) join(node int) []int {
	sorted := h.sorted[:0]
	for {
		a := h.heap[1]
		h.heap[1] = h.heap[h.n]
		h.n--
		h.sink(1)
		b := h.heap[1]
		sorted = append(sorted, a, b)
		h.freq[node] = h.freq[a] + h.freq[b]
		h.depth[node] = max(h.depth[a], h.depth[b]) + 1
		h.parent[a], h.parent[b] = int32(node), int32(node)
		h.heap[1] = node
		node++
		h.sink(1)
		if h.n < 2 {
			return append(sorted, node-1)
		}
	}
}

// limit sets the lengths of all nodes from the root on, and shortens lengths that are too
// long.
func (h *heapCoder) limit(sorted []int, last, limit int) {
	var count [16]int
	over := 0
	root := len(sorted) - 1
	h.length[sorted[root]] = 0
	isLeaf := func(node int) bool { return node <= last }
	for i := root - 1; i >= 0; i-- {
		node := sorted[i]
		n := int(h.length[h.parent[node]]) + 1
		if n > limit {
			n = limit
			over++
		}
		h.length[node] = uint8(n)
		if isLeaf(node) {
			count[n]++
		}
	}
	if over == 0 {
		return
	}
	for ; over > 0; over -= 2 {
		n := limit - 1
		for count[n] == 0 {
			n--
		}
		count[n]--
		count[n+1] += 2
		count[limit]--
	}
	i := 0
	for n := limit; n > 0; n-- {
		for left := count[n]; left > 0; i++ {
			if isLeaf(sorted[i]) {
				h.length[sorted[i]] = uint8(n)
				left--
			}
		}
	}
}

// runsZlib encodes the lengths of one code as runs.
func (c *Codes) runsZlib(l []uint8) {
	for i := 0; i < len(l); {
		n := 1
		for i+n < len(l) && l[i+n] == l[i] {
			n++
		}
		c.piecesZlib(int(l[i]), n)
		i += n
	}
}

func (c *Codes) piecesZlib(val, n int) {
	if val == 0 {
		for n > 0 {
			k := min(n, 138)
			switch {
			case k < 3:
				for range k {
					c.run(0, 0)
				}
			case k <= 10:
				c.run(17, k-3)
			default:
				c.run(18, k-11)
			}
			n -= k
		}
		return
	}
	for most, least := 7, 4; n > 0; most, least = 6, 3 {
		k := min(n, most)
		n -= k
		if k < least {
			for range k {
				c.run(val, 0)
			}
			continue
		}
		if most == 7 {
			c.run(val, 0)
			k--
		}
		c.run(16, k-3)
	}
}

// buildGo makes codes as compress/flate does.
func (c *Codes) buildGo() {
	c.Lit.N, c.Dist.N = 286, 30
	for c.litFreq[c.Lit.N-1] == 0 {
		c.Lit.N--
	}
	for c.Dist.N > 0 && c.distFreq[c.Dist.N-1] == 0 {
		c.Dist.N--
	}
	if c.Dist.N == 0 {
		c.Dist.N, c.distFreq[0] = 1, 1
	}
	c.mergeLengths(c.litFreq[:], 15, c.Lit.L[:])
	c.mergeLengths(c.distFreq[:], 15, c.Dist.L[:])
	var all [320]uint8
	n := copy(all[:], c.Lit.L[:c.Lit.N])
	n += copy(all[n:], c.Dist.L[:c.Dist.N])
	for i := 0; i < n; {
		k := 1
		for i+k < n && all[i+k] == all[i] {
			k++
		}
		c.piecesGo(int(all[i]), k)
		i += k
	}
	c.mergeLengths(c.metaFreq[:], 7, c.meta[:])
}

func (c *Codes) piecesGo(val, n int) {
	if val != 0 {
		c.run(val, 0)
		n--
		for n >= 3 {
			k := min(n, 6)
			c.run(16, k-3)
			n -= k
		}
	} else {
		for n >= 11 {
			k := min(n, 138)
			c.run(18, k-11)
			n -= k
		}
		if n >= 3 {
			c.run(17, n-3)
			n = 0
		}
	}
	for range n {
		c.run(val, 0)
	}
}

type mergeLeaf struct {
	freq int32
	sym  uint16
}

// mergeLengths is the boundary package-merge of compress/flate. Rarer symbols have longer
// codes. Of equally rare symbols, the first ones have the longer codes.
func (c *Codes) mergeLengths(freq []int32, limit int, out []uint8) {
	leaves := c.merge[:0]
	for s, f := range freq {
		out[s] = 0
		if f != 0 {
			leaves = append(leaves, mergeLeaf{f, uint16(s)})
		}
	}
	c.merge = leaves
	if len(leaves) <= 2 {
		for _, l := range leaves {
			out[l.sym] = 1
		}
		return
	}
	slices.SortFunc(leaves, func(a, b mergeLeaf) int {
		if a.freq != b.freq {
			return int(a.freq) - int(b.freq)
		}
		return int(a.sym) - int(b.sym)
	})
	count := mergeCounts(leaves, limit)
	i := 0
	for n := limit; n > 0; n-- {
		for range count[n] {
			out[leaves[i].sym] = uint8(n)
			i++
		}
	}
}

// mergeCounts returns how many codes of each length the optimal code of at most limit
// bits has. It is the package-merge algorithm of Larmore and Hirschberg. The list of each
// level has the leaves, merged with pairs of items of the list before. A pair comes
// before a leaf of the same frequency.
func mergeCounts(leaves []mergeLeaf, limit int) (count [16]int) {
	n := len(leaves)
	limit = min(limit, n-1)
	// leavesIn says for each list how many of its first items are leaves.
	var leavesIn [16][2 * 286]uint16
	var lists [2][2 * 286]int64
	size := 0
	for level := 1; level <= limit; level++ {
		before, list := lists[level&1][:size], lists[^level&1][:]
		size = 0
		for leaf, pair := 0, 0; size < 2*n-2 && (leaf < n || pair+1 < len(before)); size++ {
			if leaf < n && (pair+1 >= len(before) || int64(leaves[leaf].freq) < before[pair]+before[pair+1]) {
				list[size] = int64(leaves[leaf].freq)
				leaf++
			} else {
				list[size] = before[pair] + before[pair+1]
				pair += 2
			}
			leavesIn[level][size] = uint16(leaf)
		}
	}
	// The code consists of the first items of the last list, of the items of the list
	// before it that make up these items' pairs, and so on. A leaf has as many bits as
	// there are lists from which it is taken.
	take := size
	for level := limit; level > 0 && take > 0; level-- {
		in := int(leavesIn[level][take-1])
		count[limit-level+1] += in
		if bits := limit - level; bits > 0 {
			count[bits] -= in
		}
		take = 2 * (take - in)
	}
	return count
}
