package cluster

import (
	"archive/tar"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/wire"
)

// TestPages follows docs/kubernetes.md and the pod of docs/models.md: a release is pushed to a
// Slipway and installed from there, gets users from the cluster, is upgraded and removed.
func TestPages(t *testing.T) {
	const page = "kubernetes.md"
	c := bed{agent: onDemand, ways: []string{ctrnode.Gear}, services: true}.start(t)
	c.mark()
	c.push("public/busybox:1", imagetest.Summed(t, 0, 1, 1, 1))
	f := c.follower()
	f.release()
	f.charts()
	f.follow(page, "skopeo copy --all oci-archive:")
	c.registry.Converted()
	disk := filepath.Join(c.nodes[0].Dir, "data")
	c.volumes("/", disk)
	f.follow(page, "kubectl create namespace slipway\n", "existingSecret=slipway-users\n", "existingSecret=slipway-users --set test.image="+c.ref("public/busybox:1")+"\n",
		"rollout status", "rollout status --timeout 3m")
	alice := f.client("alice", "a long password")
	im := imagetest.Summed(t, 9, 3, 1000, 1000)
	c.check(im.Push(t.Context(), alice, "team-a/app", "1"))

	f.tokens(page)
	f.follow(page, "--version "+next+" --reset-then-reuse-values", "helm -n slipway-agent", ": helm")
	c.kubectl("-n", "slipway", "rollout", "status", "deploy/slipway", "--timeout", limit.String())
	if got := c.kubectl("-n", "slipway", "get", "deploy", "slipway", "-o", "jsonpath={.metadata.labels.app\\.kubernetes\\.io/version}"); got != next {
		t.Errorf("after the upgrade the release has version %q", got)
	}
	f.pulls("team-a", true)
	f.pulls("team-b", false)

	f.follow(page, "kubectl -n slipway delete pvc slipway-data", "helm -n slipway-agent", ": helm", "kubectl -n slipway-agent", ": kubectl")
	if got := c.kubectl("-n", "slipway", "get", "deploy,pvc,service,configmap", "-l", "app.kubernetes.io/name=slipway", "-o", "name"); got != "" {
		t.Errorf("after the removal there is %s", got)
	}
	c.kubectl("delete", "pv", "data")
	c.check(os.RemoveAll(disk))
	c.volumes("/", disk)
	f.withoutHelm(page)
	f.model()
	c.leaks("slipway", "team-a", "team-b")
}

// release makes the files of a release.
func (f *follower) release() {
	t := f.c.t
	t.Helper()
	program, err := os.ReadFile(slipway.Binary(t))
	f.c.check(err)
	im := serverImage(program)
	im.WriteLayout(t, f.path("layout"), release)
	file, err := os.Create(f.path("slipway-" + release + "-image.tar"))
	f.c.check(err)
	defer file.Close()
	w := tar.NewWriter(file)
	f.c.check(errors.Join(w.AddFS(os.DirFS(f.path("layout"))), w.Close()))
	f.env.Run(t, "skopeo", "copy", "oci:"+f.path("layout")+":"+release, "docker://"+f.c.ref("public/slipway:"+next))
}

// volumes gives the cluster volumes for registries: directories of the nodes' file system, whose root
// is a directory of this machine.
func (c *cluster) volumes(root string, paths ...string) {
	c.t.Helper()
	for _, path := range paths {
		dir := filepath.Join(root, path)
		c.check(errors.Join(os.MkdirAll(dir, 0o711), os.Chown(dir, 65532, 65532)))
		c.apply(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: %s}, spec: {capacity: {storage: 50Gi}, accessModes: [ReadWriteOnce], hostPath: {path: %q}}}`, filepath.Base(path), path))
	}
}

// client returns a client of the registry in the cluster.
func (f *follower) client(user, password string) *wire.Client {
	t := f.c.t
	t.Helper()
	addr := slipway.FreeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	cmd := exec.Command(tool.Built(t, "kubectl"), "-n", "slipway", "port-forward", "deploy/slipway", port+":5000")
	cmd.Env = f.env.Vars()
	forward := proc.Start(t, cmd, filepath.Join(t.TempDir(), "forward.log"))
	t.Cleanup(forward.Kill)
	client := wire.New(addr).As(user, password)
	t.Cleanup(client.Close)
	proc.Poll(t, limit, "the registry to answer", func() bool {
		r, err := client.Do(t.Context(), http.MethodGet, "/v2/", nil, nil)
		return err == nil && r.Status > 0
	})
	return client
}

// tokens gives the registry the cluster's keys, and kubelet the credential provider, as the page
// says.
func (f *follower) tokens(page string) {
	t := f.c.t
	t.Helper()
	said := f.follow(page, "kubectl get --raw /openid/v1/jwks > jwks.json")
	_, issuer, _ := strings.Cut(said, `"issuer":"`)
	issuer, _, _ = strings.Cut(issuer, `"`)
	values := f.text(page, "groups_claim: /kubernetes.io/namespace", "https://kubernetes.default.svc.cluster.local", issuer)
	f.c.check(os.WriteFile(f.path("values.yaml"), []byte(values), 0o600))
	f.env.Run(t, f.path("bin/helm"), "-n", "slipway", "upgrade", "slipway", "oci://"+f.c.ref("public/charts/slipway"), "--version", release, "--reuse-values", "--values", f.path("values.yaml"))
	f.follow(page, "request-serviceaccounts-token-audience")
	f.follow(page, "credentialprovider.kubelet.k8s.io/v1", "/etc/slipway/", f.env.Dir()+"/")
	providers, err := os.ReadFile(f.path("credential-providers.yml"))
	f.c.check(err)
	n := f.c.nodes[0]
	f.c.plane.Providers = string(providers)
	n.KillKubelet()
	f.c.check(n.StartKubelet(t.Context()))
}

// pulls pulls the image of namespace team-a with the token of a service account of a namespace.
func (f *follower) pulls(namespace string, allowed bool) {
	t := f.c.t
	t.Helper()
	f.c.namespace(namespace, "")
	token := f.c.kubectl("-n", namespace, "create", "token", "default", "--audience", "registry.example.com")
	if _, err := f.client("kubernetes", token).CheckImage(t.Context(), "team-a/app", "1"); (err == nil) != allowed {
		t.Errorf("an account of %s pulls the image of team-a: error %v", namespace, err)
	}
}

// withoutHelm applies the plain manifests.
func (f *follower) withoutHelm(page string) {
	t := f.c.t
	t.Helper()
	manifests := f.path("deploy/kubernetes")
	f.c.check(os.MkdirAll(manifests, 0o755))
	for _, name := range []string{"server.yaml", "replicas.yaml", "agent.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "kubernetes", name))
		f.c.check(err)
		file := filepath.Join(manifests, name)
		f.c.check(os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "registry.example.com/", f.c.ref("public/"))), 0o600))
		f.env.Run(t, tool.Built(t, "kubectl"), "apply", "--dry-run=server", "-f", file)
	}
	f.follow(page, "kubectl apply -f deploy/kubernetes/server.yaml")
	f.c.kubectl("-n", "slipway", "rollout", "status", "deploy/slipway", "--timeout", limit.String())
	c := f.client("alice", "a long password")
	f.c.check(imagetest.Summed(t, 9, 3, 1000, 1000).Push(t.Context(), c, "team-a/app", "1"))
}

// model runs the pod of the page about models.
func (f *follower) model() {
	t := f.c.t
	t.Helper()
	for _, name := range []string{"models/llama", "models/llama-lora"} {
		f.c.pushModel(name, 24, nil)
	}
	busybox, err := os.ReadFile(tool.System(t, "busybox"))
	f.c.check(err)
	server := imagetest.Compose(runtime.GOARCH, map[string]any{
		"Entrypoint": []string{"/sh", "-c", `test "$*" = "--model /model --lora /adapter" && while read -r l; do echo "$l"; done < $2/config.json && echo good && exec sleep 1000000`, "server"},
	}, []imagetest.Layer{imagetest.NewLayer(imagetest.File{Name: "sh", Mode: 0o755, Data: busybox}, imagetest.File{Name: "bin/"}, imagetest.File{Name: "bin/sleep", Mode: 0o755, Data: busybox})})
	f.c.push("public/team/server:1", server)
	f.follow("models.md", "metadata: {name: inference}")
	f.c.kubectl("wait", "--for=condition=Ready", "pod/inference", "--timeout", limit.String())
	proc.Poll(t, limit, "the pod of the page to read its model", func() bool {
		return f.c.kubectl("logs", "inference") == "{}\ngood"
	})
	f.c.kubectl("delete", "pod", "inference", "--wait", "--grace-period=0", "--force")
}
