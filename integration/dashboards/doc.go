// Package dashboards tests what people watch Slipway with: a real Prometheus with the
// delivered configuration scrapes a registry with everything switched on, a node agent
// and a replay while they work, and every query of every board, every recording rule and
// every alert is run against it.
package dashboards
