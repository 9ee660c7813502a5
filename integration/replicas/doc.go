// Package replicas tests several replicas of the registry as one: real processes on a
// real object store (versitygw) and PostgreSQL, with clients that talk to a random
// replica each time, and with faults (kill -9, restarts of the database, an object
// store in trouble, partitions, a network that is down) while garbage is collected all
// the time.
//
// Every request is recorded, and the history is judged by package history: nothing
// acknowledged is lost, no wrong byte is served, no tag is staler than the bound, and
// errors are those that a fault explains. After the faults everything must be there
// without anybody's help.
//
// Environment:
//
//	SLIPWAY_REPLICAS_FOR    how long the faults go on; default 40s
//	SLIPWAY_REPLICAS_SEED   seed of workload and faults; default: the clock, logged
//	SLIPWAY_REPLICAS_HISTORY  file that all operations are written to, for a look
//	SLIPWAY_BIN             absolute path of the binary under test
package replicas
