// Package charts tests what deploys Slipway elsewhere: the Helm chart, the manifests that are
// made from it, and the compose files. Helm renders the chart, and what comes out is decoded
// strictly as Kubernetes' own types; the configurations in it are checked by slipway config
// check. The chart is pushed to a running Slipway and rendered from there, the image of its
// Deployment is pulled from there, too, and podman runs it. The script that puts the agent on
// nodes runs in the image as in the DaemonSet, on a directory that stands for the node, where
// containerd is asked what it reads, and systemctl only writes down how it is called.
//
// Environment:
//
//	SLIPWAY_BIN  absolute path of the binary under test
package charts
