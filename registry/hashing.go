package registry

// besideMin is the size in bytes of the smallest piece of a body that is hashed
// concurrently with the other work. For smaller pieces the handover costs more than it
// gains. besideMin is greater than catalog.InlineMax, up to which a body has only one
// buffer.
const besideMin = 64<<10 + 1

// hashPiece adds a piece of a body to the upload's hash. Unless the piece is small or the
// last, a goroutine hashes it while the caller receives and stores the next piece. p must
// not change until hashPiece or hashed returns again. Without this a large push takes as
// long as hashing and storing together.
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
