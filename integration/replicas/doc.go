// Package replicas tests several replicas of the registry as one. Real processes run on a real
// object store (versitygw) and PostgreSQL. Clients talk to a random replica each time. Faults
// strike (kill -9, restarts of the database, an object store in trouble, partitions, a network that
// is down) while garbage is collected all the time.
//
// Every request is recorded, and package history judges the history. Nothing acknowledged may be
// lost, no wrong byte may be served, no tag may be staler than the bound, and every error must be
// explained by a fault. After the faults everything must be there without anybody's help.
//
// Environment:
//
//	SLIPWAY_REPLICAS_FOR    how long the faults go on; default 40s
//	SLIPWAY_REPLICAS_SEED   seed of workload and faults; default: the clock, logged
//	SLIPWAY_REPLICAS_HISTORY  file for all operations, for inspection
//	SLIPWAY_BIN             absolute path of the binary under test
package replicas
