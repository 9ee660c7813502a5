// Package config is the configuration of the registry server: one YAML file in
// the shape of Distribution's config.yml, with keys of its own on top.
//
// A Distribution v2 or v3 file works as it is. A key of Distribution that means
// nothing here is reported as a [Warning]; one whose absence would be dangerous
// or a surprise (a storage driver, a proxy, a middleware that are not there) is
// an error. Any other unknown key is an error with its line and, where there is
// one, the key that was probably meant. All problems of a file are reported at
// once, as [Problems], and none of them repeats a value, which may be secret.
//
// # Precedence
//
// Each value is taken from the first of these that has it: command line flags
// (given as [Override]), environment variables SLIPWAY_A_B, environment
// variables REGISTRY_A_B, the OpenTelemetry variables (OTEL_*, for tracing
// only), the file, the default. In a variable's name the levels are joined by
// '_', an entry of a list is its index: SLIPWAY_HTTP_TLS_CLIENTCAS_0. A
// variable can hold a whole list or section as YAML. Sections that the file
// lacks are created. An empty variable is one that is not set, but for a text,
// which it empties. A variable that names no key is an error when it begins
// with SLIPWAY_ and the name of a section, and at most a warning otherwise, for
// Kubernetes and others put variables of their own there.
//
// # Values
//
//   - A duration is written as in Go, and knows days too: 90s, 1h30m, 7d. A
//     number without a unit counts nanoseconds, as with Distribution.
//   - A size is a number of bytes, or has a unit: k, m, g, t and kb, mb, gb, tb
//     (as in Distribution powers of 1024) or KiB, MiB, GiB, TiB.
//   - In a text, ${file:/run/secrets/x} stands for the content of that file
//     without its last line break, and ${env:NAME} for an environment variable.
//     Write $${file: to get ${file: itself. What was inserted is not expanded
//     again.
//
// The package starts nothing: it reads the file and the secrets it names, and
// leaves all wiring to the composition root.
package config
