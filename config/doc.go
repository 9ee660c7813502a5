// Package config is the configuration of the registry server: one YAML file in the shape
// of Distribution's config.yml, with additional keys.
//
// A Distribution v2 or v3 file works as it is. A key of Distribution that means nothing
// here is reported as a [Warning]. It is an error if it would be dangerous or surprising to
// ignore the key (it may name a storage driver, a proxy or a middleware that does not exist
// here). Any other unknown key is an error. The error has the line and, if there is one,
// the key that was probably meant. All problems of a file are reported at once, as
// [Problems]. No problem repeats a value, because values may be secret.
//
// # Precedence
//
// Each value is taken from the first of these that has it: command line flags (given as
// [Override]), environment variables SLIPWAY_A_B, environment variables REGISTRY_A_B, the
// OpenTelemetry variables (OTEL_*, for tracing only), the file, the default. In the name of
// a variable, the levels are joined by '_', and an entry of a list is its index:
// SLIPWAY_HTTP_TLS_CLIENTCAS_0. A variable can hold a whole list or section as YAML.
// Sections that the file lacks are created. An empty variable counts as not set, but if its
// key is a text, it empties the text. A variable that names no key is an error if it begins
// with SLIPWAY_ and the name of a section. Otherwise it is at most a warning, because
// Kubernetes and others set variables of their own with these prefixes.
//
// # Values
//
//   - A duration is written as in Go, or with days: 90s, 1h30m, 7d. A
//     number without a unit counts nanoseconds, as with Distribution.
//   - A size is a number of bytes, or has a unit: k, m, g, t and kb, mb, gb, tb
//     (as in Distribution powers of 1024) or KiB, MiB, GiB, TiB.
//   - In a text, ${file:/run/secrets/x} stands for the content of that file
//     without its last line break, and ${env:NAME} for an environment variable.
//     Write $${file: to get ${file: itself. Inserted text is not expanded again.
//
// The package starts nothing. It reads the file and the secrets that the file names, and
// leaves all wiring to the composition root.
package config
