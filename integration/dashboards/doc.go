// Package dashboards tests what people monitor Slipway with. A real Prometheus with the
// configuration that ships with Slipway scrapes a registry with everything switched on, a node
// agent, and a replay while they work. Every query of every board, every recording rule and every
// alert runs against it.
package dashboards
