module example.org/slipway/integration

go 1.26.6

require (
	github.com/google/go-cmp v0.7.0
	github.com/hanwen/go-fuse/v2 v2.12.1
	golang.org/x/sys v0.49.0
)

replace example.org/slipway => ../
