// Package measure holds what the suites have in common: CPU time and memory of other processes,
// a description of the machine, medians with their spread, pictures of them, targets, and results
// that become part of a document.
package measure
