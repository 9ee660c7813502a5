package catalog_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"example.org/slipway/internal/backendtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
)

// BenchmarkPut records small blobs by several callers at once. Each blob is durable before its
// caller continues.
func BenchmarkPut(b *testing.B) {
	var server backendtest.Shared
	defer server.Close()
	for _, kind := range []string{"sqlite", "postgres"} {
		for _, callers := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s/callers=%d", kind, callers), func(b *testing.B) {
				base := catalogtest.SQLite(b)
				if kind == "postgres" {
					s := server.Postgres(b, "fsync=on", "full_page_writes=on")
					base = &catalogtest.Bed{DSN: s.DSN(s.CreateDatabase(b))}
				}
				c := open(b, base, nil)
				var next atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range callers {
					wg.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							content := fmt.Appendf(nil, "%d", i)
							err := putBlob(b.Context(), c, "repo", catalog.Blob{Digest: oci.SHA256(content), Size: int64(len(content)), Content: content}, "")
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "put/s")
			})
		}
	}
}
