package setup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.org/slipway/config"
)

// distribution says where a distribution of Kubernetes keeps the files of a node that a
// set-up writes.
type distribution struct {
	name string
	// sign is a path that identifies such a node.
	sign string
	// config is the configuration of containerd, which imports the files in dir. hosts is
	// the directory of its registries, and socket is where it listens.
	config, dir, hosts, socket string
	// imports says what to do if config does not import dir.
	imports string
	// args is a file that gives kubelet arguments. It is "" if a systemd drop-in sets the
	// arguments.
	args string
	// restart is the command that makes both programs notice the change.
	restart string
}

// distributions returns the known distributions. The last has no sign. It is for kubeadm
// and others whose containerd and kubelet are systemd services.
func distributions() []distribution {
	rancher := func(name, units string) distribution {
		etc := "/var/lib/rancher/" + name + "/agent/etc/containerd"
		return distribution{
			name: name, sign: etc, config: etc + "/config.toml", dir: etc + "/config-v3.toml.d", hosts: etc + "/certs.d",
			socket:  "/run/k3s/containerd/containerd.sock",
			imports: "this " + name + " is too old for that, its releases do so since the spring of 2026",
			args:    "/etc/rancher/" + name + "/config.yaml.d/slipway.yaml",
			restart: "systemctl restart " + units,
		}
	}
	plain := distribution{
		name: "kubeadm", config: "/etc/containerd/config.toml", dir: "/etc/containerd/conf.d", hosts: "/etc/containerd/certs.d",
		socket:  "/run/containerd/containerd.sock",
		restart: "systemctl daemon-reload && systemctl restart containerd kubelet",
	}
	eks := plain
	eks.name, eks.sign = "EKS", "/etc/eks"
	eks.imports = "nodeadm writes it at every boot: put the line into spec.containerd.config of the NodeConfig"
	return []distribution{rancher("k3s", "k3s, or k3s-agent"), rancher("rke2", "rke2-server, or rke2-agent"), eks, plain}
}

// closed returns why files of the node cannot make the containerd of a system use an
// agent, or "" if they can. id is the system's ID in os-release.
func closed(id string) string {
	switch id {
	case "talos":
		return "Talos has no shell, and runs only what its machine configuration and its extensions bring"
	case "cos":
		return "Container-Optimized OS makes /etc anew at every boot, and what it lets write it mounts without exec; use Ubuntu nodes"
	case "bottlerocket":
		return "Bottlerocket writes the configuration of containerd itself, and has no way to add to it"
	}
	return ""
}

// distributionOf recognizes a node.
func distributionOf(root string) (distribution, error) {
	if why := closed(systemID(root)); why != "" {
		return distribution{}, fmt.Errorf("the agent cannot be set up here: %s", why)
	}
	all := distributions()
	i := slices.IndexFunc(all, func(l distribution) bool {
		_, err := os.Stat(filepath.Join(root, l.sign))
		return l.sign == "" || err == nil
	})
	return all[i], nil
}

// systemID returns the ID in the node's os-release, or "" if there is none.
func systemID(root string) string {
	b, err := os.ReadFile(filepath.Join(root, "/etc/os-release"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
			return strings.Trim(id, `"'`)
		}
	}
	return ""
}

// imported reports whether containerd's configuration imports the files of a directory.
// It reads the configuration as text, because an imported file may not exist yet.
func imported(file, dir string) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "imports") && strings.Contains(line, dir+"/") {
			return true
		}
	}
	return false
}

// Kubernetes returns the changes that make kubelet pull through the agent, which
// thereby learns the credentials of pull secrets. It recognises nodes of kubeadm, EKS,
// k3s and RKE2 by their files. It is an error if the node belongs to another
// distribution, which cannot have an agent, or if there is no socket to pull through.
func Kubernetes(cfg *config.Agent, p Paths) ([]Change, error) {
	if cfg.CRI.Address == "" {
		return nil, errors.New("cri.address is not set in the agent's configuration; kubelet pulls through that socket")
	}
	l, err := distributionOf(p.Root)
	if err != nil {
		return nil, err
	}
	p.of(l)
	out := containerdFiles(cfg, p)
	if !imported(p.Containerd, p.ContainerdDir) {
		say := fmt.Sprintf("%s must import it: imports = [%q] near its top", p.Containerd, filepath.Join(p.ContainerdDir, "*.toml"))
		if l.imports != "" {
			say += "; " + l.imports
		}
		out = append(out, Change{Say: say})
	}
	if cfg.CRI.Containerd != l.socket {
		const say = "containerd of %s listens elsewhere: set cri.containerd: %s in the agent's configuration, and restart the agent"
		out = append(out, Change{Say: fmt.Sprintf(say, l.name, l.socket)})
	}
	endpoint := "image-service-endpoint=unix://" + cfg.CRI.Address
	const say = "kubelet: images are pulled by way of the agent"
	if l.args != "" {
		out = append(out, Change{File: filepath.Join(p.Root, l.args), Content: managed + "kubelet-arg+:\n  - " + endpoint + "\n", Say: say})
	} else {
		unit := readKubeletUnit(p.Root, filepath.Base(p.KubeletDropIn))
		if !unit.takes {
			out = append(out, Change{Say: "kubelet.service has no $" + extraArgs + ": add --" + endpoint + " to the arguments of kubelet"})
		}
		env := filepath.Join(p.Root, "/etc/slipway/kubelet.env")
		args := strings.TrimSpace(unit.args + " --" + endpoint)
		out = append(out,
			Change{File: env, Content: managed + extraArgs + "=" + quoteEnv(args) + "\n", Say: "kubelet: its arguments, with those that it had"},
			Change{File: p.KubeletDropIn, Content: managed + "[Service]\nEnvironmentFile=" + env + "\n", Say: say})
	}
	return append(out, Change{Say: "then " + l.restart}), nil
}

// extraArgs is the variable with which kubelet's units take more arguments.
const extraArgs = "KUBELET_EXTRA_ARGS"

// kubeletUnit is what systemd knows of kubelet.
type kubeletUnit struct {
	takes bool   // its command uses extraArgs
	args  string // the value of extraArgs without our part
}

// readKubeletUnit reads the unit and its drop-ins as systemd does: in the order of their
// names. A variable in a file of variables takes precedence over one that the unit sets
// itself. So the values that others set are kept, and a file with an empty value does not
// lose ours.
func readKubeletUnit(root, own string) (u kubeletUnit) {
	var files []string
	for _, name := range unitFiles(root, own) {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(string(b), "\\\n", " ")) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "ExecStart":
				u.takes = strings.Contains(value, "$"+extraArgs) || strings.Contains(value, "${"+extraArgs+"}")
			case "Environment":
				if v, ok := variable(value); ok {
					u.args = v
				}
			case "EnvironmentFile":
				if value == "" {
					files = nil
					continue
				}
				files = append(files, strings.TrimPrefix(value, "-"))
			}
		}
	}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), extraArgs+"="); ok {
				u.args = unquote(v)
			}
		}
	}
	return u
}

// unitFiles returns the unit of kubelet and its drop-ins except ours, in the order in
// which systemd reads them. A file hides files of the same name in later directories.
func unitFiles(root, own string) (out []string) {
	dirs := []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}
	for _, dir := range dirs {
		unit := filepath.Join(root, dir, "kubelet.service")
		if _, err := os.Stat(unit); err == nil {
			out = append(out, unit)
			break
		}
	}
	byName := map[string]string{}
	var names []string
	for _, dir := range dirs {
		found, _ := filepath.Glob(filepath.Join(root, dir, "kubelet.service.d", "*.conf")) // the pattern is valid
		for _, file := range found {
			name := filepath.Base(file)
			if name != own && byName[name] == "" {
				byName[name] = file
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		out = append(out, byName[name])
	}
	return out
}

// variable returns the value of extraArgs in a line of Environment=. The quotes may be
// around the whole assignment or around its value.
func variable(s string) (string, bool) {
	before, value, ok := strings.Cut(s, extraArgs+"=")
	if !ok {
		return "", false
	}
	end := " "
	switch {
	case strings.HasSuffix(before, `"`), strings.HasSuffix(before, "'"):
		end = before[len(before)-1:]
	case strings.HasPrefix(value, `"`), strings.HasPrefix(value, "'"):
		end, value = value[:1], value[1:]
	}
	value, _, _ = strings.Cut(value, end)
	return value, true
}

// unquote removes quotes around a whole value.
func unquote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// quoteEnv writes a value for a file of variables.
func quoteEnv(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s) + `"`
}
