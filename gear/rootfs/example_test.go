package rootfs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"

	"example.org/slipway/gear/rootfs"
)

func ExampleOpen() {
	var layer bytes.Buffer
	zw := gzip.NewWriter(&layer)
	tw := tar.NewWriter(zw)
	for _, h := range []tar.Header{
		{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./etc/motd", Typeflag: tar.TypeReg, Mode: 0o644, Size: 6},
		{Name: "./etc/.wh.issue", Typeflag: tar.TypeReg},
	} {
		if err := tw.WriteHeader(&h); err != nil {
			log.Fatal(err)
		}
		if _, err := io.WriteString(tw, "hello\n"[:h.Size]); err != nil {
			log.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		log.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		log.Fatal(err)
	}

	r, err := rootfs.Open(context.Background(), &layer, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	for {
		e, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: whiteout %v, mode %#o, content %q\n", e.Path, e.Type == rootfs.Whiteout, e.Mode, content)
	}
	sums, _ := r.Sums()
	fmt.Println(sums.Compression, sums.Uncompressed)
	// Output:
	// etc: whiteout false, mode 0755, content ""
	// etc/motd: whiteout false, mode 0644, content "hello\n"
	// etc/issue: whiteout true, mode 0, content ""
	// gzip 3072
}
