package systemd

import (
	"strings"
	"testing"
)

// kubeadmConf is the drop-in of the packages of Kubernetes; FILE has the arguments of the
// administrator.
const kubeadmConf = `[Service]
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-FILE
ExecStart=
ExecStart=/usr/local/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`

// eksService is EKS's unit of kubelet, changed for a program that ends.
const eksService = `[Service]
Type=oneshot
EnvironmentFile=/etc/eks/kubelet/environment
ExecStart=/usr/local/bin/kubelet --config /etc/kubernetes/kubelet/config.json \
    $NODEADM_KUBELET_ARGS \
    $KUBELET_EXTRA_ARGS
`

// testKubelet has systemd start kubelet with the units and files of distributions, before and after
// the set-up. A stand-in for kubelet writes down its arguments: after the set-up there must be
// those from before, and one more.
func (m *machine) testKubelet(t *testing.T) {
	const (
		config   = "/etc/slipway/kubelet-test.yml"
		unit     = "/usr/lib/systemd/system/kubelet.service"
		conf     = unit + ".d/10-kubeadm.conf"
		early    = "/etc/systemd/system/kubelet.service.d/05-ours.conf"
		ours     = "/etc/systemd/system/kubelet.service.d/20-ours.conf"
		endpoint = "--image-service-endpoint=unix:///run/slipway-agent/cri.sock"
	)
	with := func(file string) string { return strings.Replace(kubeadmConf, "FILE", file, 1) }
	m.Write(t, config, "cri: {address: /run/slipway-agent/cri.sock}\n")
	m.Write(t, "/usr/local/bin/kubelet", "#!/bin/sh\nprintf '%s|' \"$@\" > /run/kubelet-args\n")
	m.Run(t, "chmod", "0755", "/usr/local/bin/kubelet")
	for name, files := range map[string]map[string]string{
		"Debian":                {conf: with("/etc/default/kubelet")},
		"Fedora, empty":         {conf: with("/etc/sysconfig/kubelet"), "/etc/sysconfig/kubelet": "KUBELET_EXTRA_ARGS=\n"},
		"file with arguments":   {conf: with("/etc/default/kubelet"), "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=\"--node-ip=10.0.0.1 --v=2\"\n"},
		"file without quotes":   {conf: with("/etc/default/kubelet"), "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--node-ip=10.0.0.1 --v=2\n"},
		"arguments of kubeadm":  {conf: with("/etc/default/kubelet"), "/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"--node-labels=a=b\"\n"},
		"variable in a drop-in": {conf: with("/etc/default/kubelet"), ours: "[Service]\nEnvironment=OTHER=1 \"KUBELET_EXTRA_ARGS=--v=4 --feature-gates=A=true\"\n"},
		"variable unquoted":     {conf: with("/etc/default/kubelet"), early: "[Service]\nEnvironment=KUBELET_EXTRA_ARGS=--v=4 OTHER=1\n"},
		"value in quotes":       {conf: with("/etc/default/kubelet"), ours: "[Service]\nEnvironment=KUBELET_EXTRA_ARGS='--v=4 --node-ip=::1'\n"},
		"file over variable": {conf: with("/etc/default/kubelet"), "/etc/default/kubelet": "# ours\n\nKUBELET_EXTRA_ARGS='--v=5'\n",
			ours: "[Service]\nEnvironment=\"KUBELET_EXTRA_ARGS=--v=4\"\n"},
		"EKS": {unit: eksService,
			"/etc/eks/kubelet/environment": "NODEADM_KUBELET_ARGS='--hostname-override=a'\n"},
	} {
		all := map[string]string{unit: "[Service]\nType=oneshot\nExecStart=/usr/local/bin/kubelet\n"}
		for file, text := range files {
			all[file] = text
		}
		for file, text := range all {
			m.Write(t, file, text)
		}
		start := func() []string {
			t.Helper()
			m.Run(t, "systemctl", "daemon-reload")
			m.Run(t, "systemctl", "start", "kubelet")
			return strings.Split(strings.TrimSuffix(m.Run(t, "cat", "/run/kubelet-args"), "|"), "|")
		}
		before := start()
		m.Run(t, "slipway", "agent", "setup", "--kubernetes", "--apply", "--config", config)
		want := strings.Join(append(before, endpoint), " ")
		if got := strings.Join(start(), " "); got != want {
			t.Errorf("%s: kubelet has the arguments\n%s\nwant\n%s", name, got, want)
		}
		m.Run(t, "slipway", "agent", "setup", "--kubernetes", "--undo", "--config", config)
		if got, want := strings.Join(start(), " "), strings.Join(before, " "); got != want {
			t.Errorf("%s: after undoing kubelet has the arguments\n%s\nwant\n%s", name, got, want)
		}
		for file := range all {
			m.Run(t, "rm", file)
		}
		m.Run(t, "rm", "-rf", "/etc/eks")
	}
	m.Run(t, "rm", config, "/usr/local/bin/kubelet")
	m.Run(t, "systemctl", "daemon-reload")
}
