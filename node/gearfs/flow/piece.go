package flow

// leastPiece is the fewest parts of one request, unless fewer are left. Shorter requests
// would end before the next one has begun.
const leastPiece = 2

// Piece returns the first of the missing parts of a content for the next request, if
// several requests bring it at the same time: a run without gaps of at most most parts.
// Requests get shorter towards the end, so that they end at about the same time.
func Piece(missing []int, requests, most int) []int {
	n := min(max((len(missing)+2*requests-1)/(2*requests), leastPiece), most, len(missing))
	for i := 1; i < n; i++ {
		if missing[i] != missing[i-1]+1 {
			n = i
		}
	}
	return missing[:n]
}
