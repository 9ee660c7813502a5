// Package kube runs Kubernetes clusters on one machine. Etcd, API server, controller manager and
// scheduler are processes beside the caller. Each node is a network namespace with kubelet,
// containerd and the agent. RBAC and the Node authorizer control access, and all of Kubernetes'
// default admission is on. Unless StartServices starts kube-proxy and a DNS server, the addresses of
// services lead nowhere.
//
// scripts/setup.sh kubernetes builds the programs. Everything lies below one directory. The package
// needs root.
package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

const (
	// readyTimeout is generous: the API server needs seconds of CPU time to start.
	readyTimeout = 3 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Programs lists the programs that a cluster needs in addition to the programs of
// ctrnode.
var Programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "bridge", "loopback", "host-local"}

// Plane is the control plane of a cluster.
type Plane struct {
	// Providers is the credential provider configuration of kubelets that are started from now on.
	// The only program is slipway. If it is "", kubelets have no providers.
	Providers string
	// Disk has the settings of kubelet that say when a disk is full, for kubelets that are started
	// from now on. Nodes may share a disk, so by default none ever is.
	Disk string

	dir, addr string
	running   []*proc.Process // in the order in which they were started
	dns       string          // the DNS server's address, or "" without services
	nodes     []*Node
}

// StartPlane starts a control plane that listens on an address of this machine, and waits until it
// answers. The caller stops it.
func StartPlane(ctx context.Context, dir, host string) (p *Plane, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p = &Plane{dir: dir, addr: net.JoinHostPort(host, port)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start control plane: %w\n%s", err, p.Logs()), p.Stop())
		}
	}()
	if err := p.write(host); err != nil {
		return p, err
	}
	etcd, err := p.startEtcd()
	if err != nil {
		return p, err
	}
	api, err := p.launch("kube-apiserver",
		"--etcd-servers", etcd, "--bind-address", host, "--advertise-address", host, "--secure-port", port,
		"--tls-cert-file", p.path("api.crt"), "--tls-private-key-file", p.path("api.key"), "--cert-dir", p.path("certs"),
		"--token-auth-file", p.path("tokens.csv"), "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--service-account-issuer", "https://"+p.addr, "--service-account-signing-key-file", p.path("sa.key"), "--service-account-key-file", p.path("sa.key"),
		"--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged", "--kubelet-preferred-address-types", "InternalIP")
	if err != nil {
		return p, err
	}
	if err := p.await(ctx, api, "get", "--raw", "/readyz"); err != nil {
		return p, err
	}
	_, err = p.launch("kube-controller-manager", "--kubeconfig", p.Kubeconfig("controllers"), "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file", p.path("sa.key"), "--root-ca-file", p.path("ca.crt"), "--cert-dir", p.path("certs"), "--secure-port", "0",
		"--node-monitor-grace-period", "30s")
	if err != nil {
		return p, err
	}
	scheduler, err := p.launch("kube-scheduler", "--kubeconfig", p.Kubeconfig("scheduler"), "--leader-elect=false", "--cert-dir", p.path("certs"), "--secure-port", "0")
	if err != nil {
		return p, err
	}
	// Pods need a service account, which the controllers make.
	return p, p.await(ctx, scheduler, "get", "serviceaccount", "default")
}

func freePort() (string, error) {
	addr, err := slipway.FindAddr()
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(addr)
	return port, err
}

func (p *Plane) startEtcd() (client string, err error) {
	clients, err := slipway.FindAddr()
	if err != nil {
		return "", err
	}
	peers, err := slipway.FindAddr()
	if err != nil {
		return "", err
	}
	client, peer := "http://"+clients, "http://"+peers
	_, err = p.launch("etcd", "--data-dir", p.path("etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	return client, err
}

func (p *Plane) path(name string) string { return filepath.Join(p.dir, name) }

func (p *Plane) launch(program string, args ...string) (*proc.Process, error) {
	cmd := exec.Command(filepath.Join(tool.Dir(), program), args...)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + p.dir}, p.dir
	started, err := proc.Launch(cmd, p.path(program+".log"))
	if err == nil {
		p.running = append(p.running, started)
	}
	return started, err
}

// await runs a kubectl command until it succeeds.
func (p *Plane) await(ctx context.Context, of *proc.Process, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, err := p.Kubectl(ctx, "", args...)
		if err == nil {
			return nil
		}
		select {
		case <-of.Exited():
			return fmt.Errorf("%s ended: %s", of.Name, of.State())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", of.Name, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Kubectl runs kubectl as the administrator, with a text as its input.
func (p *Plane) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(tool.Dir(), "kubectl"), append([]string{"--kubeconfig", p.Kubeconfig("admin")}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{"HOME=" + p.dir, "PATH=/usr/bin:/bin"}, p.dir, strings.NewReader(input), &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, stderr.Bytes(), stdout.Bytes())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// Logs returns the end of each program's output.
func (p *Plane) Logs() string {
	var b strings.Builder
	for _, r := range p.running {
		fmt.Fprintf(&b, "%s (%s) printed last:\n%s\n", r.Name, r.State(), r.Log(3000))
	}
	return b.String()
}

// Stop ends the control plane, in the reverse order of the start.
func (p *Plane) Stop() error {
	var errs []error
	for i := len(p.running) - 1; i >= 0; i-- {
		r := p.running[i]
		select {
		case <-r.Exited():
			errs = append(errs, fmt.Errorf("%s had ended: %s", r.Name, r.State()))
		default:
			_ = r.Stop(stopTimeout) // how it ends does not matter
		}
	}
	p.running = nil
	return errors.Join(errs...)
}

// accounts returns the users that have a token, with their groups.
func accounts(nodes ...string) map[string][2]string {
	all := map[string][2]string{
		"admin":       {"admin", "system:masters"},
		"controllers": {"system:kube-controller-manager", ""},
		"scheduler":   {"system:kube-scheduler", ""},
		"proxy":       {"system:kube-proxy", ""},
	}
	for _, n := range nodes {
		all[n] = [2]string{"system:node:" + n, "system:nodes"}
	}
	return all
}

// maxNodes is the number of nodes with an account. The API server reads tokens only when it starts.
const maxNodes = 5

func nodeName(i int) string { return fmt.Sprintf("node%d", i) }

// Kubeconfig returns the path of the file that lets an account reach the API server.
func (p *Plane) Kubeconfig(account string) string { return p.path(account + ".kubeconfig") }

// write writes keys, certificates and accounts.
func (p *Plane) write(host string) error {
	if err := os.MkdirAll(p.path("certs"), 0o700); err != nil {
		return err
	}
	if err := p.certify(host); err != nil {
		return err
	}
	var names []string
	for i := range maxNodes {
		names = append(names, nodeName(i))
	}
	var tokens strings.Builder
	for name, a := range accounts(names...) {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,%q\n", token, a[0], a[0], a[1])
		text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, p.addr, p.path("ca.crt"), token)
		if err := os.WriteFile(p.Kubeconfig(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(p.path("tokens.csv"), []byte(tokens.String()), 0o600)
}

// certify makes a certificate authority, the API server's certificate, and the key that signs
// tokens of service accounts.
func (p *Plane) certify(host string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.ParseIP(host),
			net.IPv4(10, 96, 0, 1)}, DNSNames: []string{"kubernetes.default.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &key.PublicKey, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	signer, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	signerDER, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":  {Type: "CERTIFICATE", Bytes: caDER},
		"api.crt": {Type: "CERTIFICATE", Bytes: serverDER},
		"api.key": {Type: "PRIVATE KEY", Bytes: keyDER},
		"sa.key":  {Type: "PRIVATE KEY", Bytes: signerDER},
	} {
		if err := os.WriteFile(p.path(name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
