// Package kubernetes tests the agent as kubelet uses it. containerd answers the Container Runtime
// Interface, and the agent is its snapshotter and stands in front of its image service. The test
// sends the requests that kubelet would send. Package cluster runs kubelet itself.
package kubernetes
