// Package cluster tests Slipway in Kubernetes clusters that it starts: pods that start lazily, with
// everything that a pod may ask for, and nodes that are restarted, drained and rebooted under them.
// scripts/test-kubernetes.sh runs it; it is not part of make test.
package cluster
