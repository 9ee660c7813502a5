// Package charts tests what deploys Slipway elsewhere: the Helm chart, the manifests that are
// generated from it, and the compose files. Helm renders the chart. The output is decoded strictly
// as Kubernetes' own types, and slipway config check checks the configurations in it. The chart is
// pushed to a running Slipway and rendered from there. The image of its Deployment is pulled from
// there too, and podman runs it. The script that installs the agent on nodes runs in the image, as
// in the DaemonSet, on a directory that stands for the node. There a real containerd says what it
// reads, and a systemctl only records how it is called.
//
// Environment:
//
//	SLIPWAY_BIN  absolute path of the binary under test
package charts
