// Package agent tests the node agent from outside: real processes with a real registry, containerd
// and dockerd, in ordinary use and with faults.
//
// Environment, in addition to that of package integration:
//
//	SLIPWAY_AGENTKILL_FOR  how long the worker is killed each second under a container
//	                       that opens 50,000 files; default: 20s of more kills, 4,000 files
package agent
