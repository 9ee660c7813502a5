package s3store

import "fmt"

const (
	// maxParts is the most parts of a multipart upload: S3.
	maxParts = 10_000
	// maxPart is the largest part, in bytes. S3 takes 5 GiB; a part is held in RAM.
	maxPart = 512 << 20
	// maxObject is the largest object, in bytes: S3.
	maxObject = 5 << 40
	// growEvery is after how many parts their size doubles, where the object's size
	// was not known: 10,000 parts that began with 16 MiB hold 968 GiB.
	growEvery = 2000
	// hintParts is in how many parts an object of expected size should fit, which
	// leaves room for cuts by Suspend and for hints that are too small.
	hintParts = 8000
)

// partSize is how large parts of an upload are at its beginning: as the store's
// options say, larger for an object that would have too many of them.
func partSize(configured, sizeHint int64) int64 {
	const mib = 1 << 20
	if need := min(sizeHint, maxObject) / hintParts; need >= configured {
		return min((need/mib+1)*mib, maxPart)
	}
	return configured
}

// grown is the size of the next part of an upload that began with parts of size
// first and has n parts.
func grown(first int64, n int) int64 {
	size := first
	for ; n >= growEvery && size < maxPart; n -= growEvery {
		size *= 2
	}
	return min(size, maxPart)
}

// checkParts returns an error if an upload cannot take another part.
func checkParts(n int) error {
	if n >= maxParts {
		return fmt.Errorf("upload has %d parts, S3 takes no more: announce its size, or set a larger part size", n)
	}
	return nil
}
