package packfile

import (
	"encoding/binary"

	"github.com/klauspost/compress/zstd"
)

const (
	// DictSize is the length of the text of a dictionary in bytes. The small files of
	// twelve images take 50.8 MB without a dictionary, 46.7 MB with 112 KiB, 45.4 MB with
	// 256 KiB and 44.5 MB with 512 KiB (measured). Each reader needs the whole
	// dictionary.
	DictSize = 256 << 10
	// SampleBytes is how many bytes a dictionary is trained on.
	SampleBytes = 64 * DictSize
	// minSamples is the minimum number of samples. In a pack with fewer, a dictionary
	// costs more than it saves.
	minSamples = 64
	// segment is how many bytes of a sample are taken at a time.
	segment = 1024
	// Gram is how many bytes count as a repetition.
	Gram = 8
	// gramBits is the size of the table of counts, as a power of two.
	gramBits = 20
)

// dictID is the ID of all dictionaries. The pack of a frame determines which dictionary
// the frame needs. The number is the lowest of the range for private use.
const dictID = 32768

// Train makes a dictionary from contents so small that a reader decodes them whole. The
// contents follow each other in all. The result is a function of samples alone, unlike
// the result of the compression library's own trainer. Train returns nil if a dictionary
// is not worthwhile.
func Train(all []byte, samples [][]byte, level zstd.EncoderLevel) []byte {
	if len(samples) < minSamples {
		return nil
	}
	text := cover(all, samples)
	if len(text) < segment {
		return nil
	}
	dict, err := zstd.BuildDict(zstd.BuildDictOptions{ID: dictID, Contents: samples, History: text, Offsets: [3]int{1, 4, 8}, Level: level})
	if err != nil { // for example if all samples are the same
		return nil
	}
	return dict
}

func gramHash(b []byte) uint32 {
	return uint32((binary.LittleEndian.Uint64(b) * 0x9E3779B185EBCA87) >> (64 - gramBits))
}

// cover chooses the segments of the samples whose grams occur in most samples, and counts
// each gram once (the COVER algorithm: Liao, Petri, Moffat, Wirth, "Effective
// Construction of Relative Lempel-Ziv Dictionaries", WWW'16). The best segments come
// last, where matches are cheapest.
func cover(all []byte, samples [][]byte) []byte {
	weights := weigh(samples)
	epochs := DictSize / segment
	length := max(len(all)/epochs, segment)
	seen := make([]uint16, 1<<gramBits)
	dict := make([]byte, DictSize)
	tail := DictSize
	for begin, idle := 0, 0; tail > 0 && idle < epochs; begin += length {
		if begin+segment > len(all) {
			begin = 0
		}
		at := bestSegment(all[begin:min(begin+length, len(all))], weights, seen)
		if at < 0 {
			idle++
			continue
		}
		idle = 0
		part := all[begin+at : min(begin+at+segment, len(all))]
		for i := 0; i+Gram <= len(part); i++ {
			weights[gramHash(part[i:])] = 0
		}
		n := min(len(part), tail)
		tail -= n
		copy(dict[tail:], part[len(part)-n:])
	}
	return dict[tail:]
}

// weigh counts for each gram the samples in which it occurs. A gram that occurs in a
// single sample has no weight.
func weigh(samples [][]byte) []uint32 {
	weights := make([]uint32, 1<<gramBits)
	last := make([]int32, 1<<gramBits)
	for i, s := range samples {
		for j := 0; j+Gram <= len(s); j++ {
			if h := gramHash(s[j:]); last[h] != int32(i+1) {
				last[h] = int32(i + 1)
				weights[h]++
			}
		}
	}
	for i, w := range weights {
		if w < 2 {
			weights[i] = 0
		}
	}
	return weights
}

// bestSegment returns the start of the segment with the greatest weight, or -1 if no
// segment has any weight. seen is all zero before and after the call.
func bestSegment(b []byte, weights []uint32, seen []uint16) int {
	const grams = segment - Gram + 1
	var weight, best uint64
	lo, at := 0, -1
	drop := func() {
		h := gramHash(b[lo:])
		if seen[h]--; seen[h] == 0 {
			weight -= uint64(weights[h])
		}
		lo++
	}
	for hi := 0; hi+Gram <= len(b); hi++ {
		h := gramHash(b[hi:])
		if seen[h]++; seen[h] == 1 {
			weight += uint64(weights[h])
		}
		if hi-lo+1 > grams {
			drop()
		}
		if weight > best {
			best, at = weight, lo
		}
	}
	for lo+Gram <= len(b) {
		drop()
	}
	return at
}
