// Package synth makes traces of a registry that look like real ones. Their requests are
// fitted to what is published about the seven availability zones of the IBM container
// registry (Anwar et al., FAST'18, and counts of its public archive), or to the
// statistics of a given trace. The same seed gives the same trace on any number of
// processors.
//
// A trace consists of sessions: runs of pings, looks at a manifest, pulls, layers fetched
// alone, pushes and the pulls that follow them. A [Profile] says how often each kind of
// session comes, how popular images, layers and clients are, how large and how slow
// contents are, and how the load changes over the day and the week.
// docs/synthetic-traces.md lists every published number, and how near the result comes to
// it.
package synth
