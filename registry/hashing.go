package registry

// besideMin is the smallest piece of a body, in bytes, that is hashed beside the
// rest of the work: for less, handing it over costs more than is gained. It is
// more than catalog.InlineMax, up to which a body has one buffer only.
const besideMin = 64<<10 + 1

// hashPiece adds a piece of a body to the upload's hash. Unless it is the last
// or small, a goroutine hashes it while the caller receives and stores the next,
// and p must stay as it is until hashPiece or hashed returns again. Without this
// a large push takes as long as hashing and storing take together.
func (u *upload) hashPiece(p []byte, last bool) {
	u.hashed()
	if last || len(p) < besideMin {
		u.hash.Write(p)
		return
	}
	done := make(chan struct{})
	u.hashing = done
	go func() {
		defer close(done)
		u.hash.Write(p)
	}()
}

// hashed waits until all pieces are in the hash.
func (u *upload) hashed() {
	if u.hashing != nil {
		<-u.hashing
		u.hashing = nil
	}
}
