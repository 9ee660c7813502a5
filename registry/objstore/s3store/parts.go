package s3store

import "fmt"

const (
	// maxParts is S3's limit for the parts of a multipart upload.
	maxParts = 10_000
	// maxPart is the largest part, in bytes. S3 takes 5 GiB; a part is held in RAM.
	maxPart = 512 << 20
	// maxObject is S3's limit for the size of an object, in bytes.
	maxObject = 5 << 40
	// growEvery is the number of parts after which their size doubles if the object's
	// size is unknown. 10,000 parts that begin with 16 MiB hold 968 GiB.
	growEvery = 2000
	// hintParts is the number of parts into which an object of expected size should fit.
	// It leaves room for cuts by Suspend and for hints that are too small.
	hintParts = 8000
)

// partSize returns the size of an upload's first parts: the store's option, or more for
// an object that would have too many parts.
func partSize(configured, sizeHint int64) int64 {
	const mib = 1 << 20
	if need := min(sizeHint, maxObject) / hintParts; need >= configured {
		return min((need/mib+1)*mib, maxPart)
	}
	return configured
}

// grown returns the size of the next part of an upload that began with parts of size
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
