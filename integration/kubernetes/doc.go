// Package kubernetes tests the agent as kubelet uses it: containerd answers the Container
// Runtime Interface, the agent is its snapshotter and stands before its image service, and
// the test asks what kubelet would ask. Package cluster has kubelet itself.
package kubernetes
