package imagetest

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/tool"
)

// applets are the busybox programs in an image of [Summed].
var applets = strings.Fields("sh sha256sum sleep cat id head wc dd touch ls echo true wget nslookup")

// Verify is the shell command that reads every file of a [Summed] image. It fails if the
// content of a file has changed.
const Verify = "cd / && sha256sum -c -s sums"

// VerifyLarge is the shell command that reads the large file.
const VerifyLarge = "cd / && sha256sum -c -s large.sum"

// Summed returns an image of busybox with files of random content below /files and their sums in
// /sums. The last file is /large, whose sum is in /large.sum. Images with different seeds share no
// file but busybox. A container of the image sleeps unless it is given a script.
func Summed(t testing.TB, seed byte, files, sizeBytes, largeBytes int) *Bundle {
	t.Helper()
	busybox, err := os.ReadFile(tool.System(t, "busybox"))
	must(err)
	base := new(Archive).Dir("./").Dir("bin/").Dir("tmp/").Add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	for _, name := range applets {
		base.Symlink("bin/"+name, "busybox")
	}
	rng := rand.NewChaCha8([32]byte{seed})
	content := func(n int) []byte {
		b := make([]byte, n)
		_, err := rng.Read(b)
		must(err)
		return b
	}
	a, sums := new(Archive).Dir("files/"), new(strings.Builder)
	for i := range files {
		data := content(sizeBytes)
		name := fmt.Sprintf("files/%d", i)
		a.File(name, string(data))
		fmt.Fprintf(sums, "%x  %s\n", sha256.Sum256(data), name)
	}
	a.File("sums", sums.String())
	data := content(largeBytes)
	a.File("large.sum", fmt.Sprintf("%x  large\n", sha256.Sum256(data)))
	large := new(Archive).File("large", string(data))
	return Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/bin/sh", "-c"}, "Cmd": []string{"exec sleep 1000000"}, "Env": []string{"PATH=/bin"}},
		[]Layer{base.Layer(), a.Layer(), large.Layer()})
}
