module example.org/slipway/integration

go 1.26.6

require github.com/google/go-cmp v0.7.0

replace example.org/slipway => ../
