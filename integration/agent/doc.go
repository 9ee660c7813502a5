// Package agent tests the node agent from outside: the real processes, with a
// real registry, containerd and dockerd, in ordinary use and with faults.
//
// Environment, besides that of package integration:
//
//	SLIPWAY_AGENTKILL_FOR  how long the worker is killed again and again under a
//	                       container, default 20s
package agent
