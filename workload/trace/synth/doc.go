// Package synth makes traces of a registry that look like real ones: requests fitted
// to what is published about the seven availability zones of the IBM container
// registry (Anwar et al., FAST'18, and counts of its public archive), or to the
// statistics of a trace at hand. The same seed gives the same trace, whatever the
// number of processors.
//
// A trace is the sum of sessions: runs of pings, looks at a manifest, pulls, layers
// fetched alone, pushes and the pulls that follow them. A [Profile] says how often
// each comes, how popular images, layers and clients are, how large and how slow
// contents are, and how the load goes through the day and the week.
// docs/synthetic-traces.md lists every published number with how near the result
// comes to it.
package synth
