package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
)

// content is a blob whose bytes follow from a number.
type content struct {
	Digest string
	Size   int64
	seed   uint64
}

// newContent returns a blob of a size that differs from those of other numbers.
func newContent(seed uint64, size int64) content {
	c := content{Size: size, seed: seed}
	h := sha256.New()
	_, _ = io.Copy(h, c.reader()) // neither side fails
	c.Digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return c
}

// reader returns the bytes from the first on.
func (c content) reader() io.Reader {
	var seed [32]byte
	for i := range 8 {
		seed[i] = byte(c.seed >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(seed), c.Size)
}
