package imagetest

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"runtime"
)

// Incompressible returns an image of one layer of so many MiB of random bytes. If one is true, they
// are one file. Otherwise they are files of up to 1 MiB and, at every tenth place, of 10 MiB. The name
// of each file is its SHA-256. The image is in memory, and takes three times its size there while it
// is made.
func Incompressible(mbytes int, one bool) *Bundle {
	rng, size := rand.NewChaCha8([32]byte{91}), rand.New(rand.NewPCG(91, 1))
	a := new(Archive).Dir("./").Dir("files/")
	for i, left := 0, mbytes<<20; left > 0; i++ {
		n := 1 + size.IntN(1<<20)
		if i%10 == 9 {
			n = 10 << 20
		}
		if one {
			n = left
		}
		n = min(n, left)
		data := make([]byte, n)
		_, err := rng.Read(data)
		must(err)
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%x", sha256.Sum256(data))}, data)
		left -= n
	}
	return Compose(runtime.GOARCH, map[string]any{}, []Layer{a.Layer()})
}
