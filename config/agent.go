package config

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path"
	"reflect"
	"strings"
	"time"

	"example.org/slipway/config/yamlfile"
	"example.org/slipway/oci/warm"
)

// Agent is the configuration of the node agent. Make one with ParseAgent or LoadAgent,
// because the zero value lacks the defaults. Its file has the same form as the server's,
// but it has no version, and no environment variables are overlaid.
type Agent struct {
	Root        string          `yaml:"root" default:"/var/lib/slipway-agent" doc:"Directory of the agent: files, indexes and containers' own changes. It must not lie on an overlay or a network file system."`
	Run         string          `yaml:"run" doc:"Directory for sockets, mounts and files that need not outlive a reboot, best on a tmpfs. Empty means /run/slipway-agent for the usual root, else a directory run in the root."`
	Address     string          `yaml:"address" doc:"Socket that containerd calls as a proxy snapshotter. Empty means snapshotter.sock in run." example:"/run/slipway-agent/snapshotter.sock"`
	Log         AgentLog        `yaml:"log" doc:"What is logged. Lines go to standard error."`
	Metrics     AgentMetrics    `yaml:"metrics" doc:"Metrics and health over HTTP."`
	Registries  []AgentRegistry `yaml:"registries" doc:"Registries that need settings. Any other registry is reached by HTTPS under its name in the image, or by HTTP if it has an address of this machine, with the credentials of docker's configuration. Only registries that are listed, or that run on this machine, are asked for indexes (see any_registry)."`
	AnyRegistry bool            `yaml:"any_registry" doc:"Also loads images lazily from registries that are not listed. An index says which files an image has, and nothing proves that it matches the layer. So by default these images are unpacked, which compares them with their digests."`
	Cache       AgentCache      `yaml:"cache" doc:"The files that all images share. Each trust domain (registries) sees those that its registries have sent."`
	Fetch       AgentFetch      `yaml:"fetch" doc:"How files are fetched."`
	Peers       AgentPeers      `yaml:"peers" doc:"Files from other nodes that use the same image. The registry introduces the nodes to each other."`
	Profiles    AgentProfiles   `yaml:"profiles" doc:"Start-up profiles: which files a container opens first."`
	Node        AgentNode       `yaml:"node" doc:"What this node is called, for orders of images (warm)."`
	Warm        bool            `yaml:"warm" default:"true" doc:"Asks the registries that are listed, and those of the images here, whether this node shall fetch images before they are started (slipway warm). What is fetched has the limits of the background fetch, and must fit into the cache."`
	Report      bool            `yaml:"report" default:"true" doc:"Reports to registries which containers of their images run on this node, and how much of these images the node has, for their list of nodes."`
	CRI         AgentCRI        `yaml:"cri" doc:"Proxy between kubelet and containerd's image service, which learns the credentials of image pull secrets."`
	Kernel      AgentKernel     `yaml:"kernel" doc:"Which abilities of the kernel are used. Each is tried out at start."`
	Volumes     AgentVolumes    `yaml:"volumes" doc:"Images as volumes in storage that this node is connected to (docs/volumes.md). Without file.dir and rbd.conf there are none."`
	Choice      AgentChoice     `yaml:"choice" doc:"How an image gets to this node: volume, as blocks from shared storage; gear, as files when they are opened; plain, unpacked in the ordinary way. The first way that works is used, and plain always comes last."`

	places yamlfile.Places
}

// AgentLog configures the agent's log.
type AgentLog struct {
	Level     string `yaml:"level" default:"info" enum:"error|warn|info|debug" doc:"Least important line that is logged: error, warn, info or debug."`
	Formatter string `yaml:"formatter" default:"text" enum:"text|json" doc:"Form of a log line: text or json."`
}

// AgentMetrics configures the agent's metrics.
type AgentMetrics struct {
	Addr                  string `yaml:"addr" doc:"Address to serve /metrics and /healthz on, reachable from this machine only. Empty serves none." example:"127.0.0.1:5002"`
	InsecureOpenToNetwork bool   `yaml:"insecure_open_to_network" doc:"True allows an address that other machines reach. No password is required."`
}

// AgentRegistry says how to reach a registry.
type AgentRegistry struct {
	Host                   string   `yaml:"host" doc:"Name of the registry in the names of images, with its port if it has one." example:"registry.example.com"`
	URLs                   []string `yaml:"urls" doc:"URLs where Slipway serves the registry's images; the first that answers is used. Empty means https and the host." example:"https://registry.example.com"`
	Prefix                 string   `yaml:"prefix" doc:"Prefix of the repository at these URLs, for a mirror of several registries." example:"docker.io/"`
	Domain                 string   `yaml:"domain" doc:"Trust domain. An image shows only files that a registry of its domain has sent to this node, even if others are in the cache. Registries of the same domain share the files that they sent. Empty means a domain for this registry alone." example:"company"`
	CA                     string   `yaml:"ca" doc:"PEM file of the authorities that may certify the registry. Empty means the system's."`
	Certificate            string   `yaml:"certificate" doc:"PEM file of this node's certificate."`
	Key                    string   `yaml:"key" doc:"PEM file of the certificate's key."`
	InsecureSkipVerify     bool     `yaml:"insecure_skip_verify" doc:"True accepts any certificate."`
	InsecureAllowPlaintext bool     `yaml:"insecure_allow_plaintext" doc:"True allows http URLs of other machines. Everybody on the way can then read passwords and images."`
	Username               string   `yaml:"username" doc:"User to log in as. Empty means docker's configuration and the credential helpers that it names."`
	Password               string   `yaml:"password" secret:"true" doc:"Password of the user." example:"${file:/run/secrets/registry}"`
}

// AgentCache configures the cache of files.
type AgentCache struct {
	MaxBytes Size   `yaml:"max_bytes" default:"20GiB" min:"0" doc:"Limit of the disk space for files, not counting a file that is being fetched. Files in use stay, and files that running containers need are removed last. 0 means no limit."`
	Policy   string `yaml:"policy" default:"lru" enum:"lru|fifo" doc:"Which files are removed first: lru, those that were not used for longest; fifo, those that were fetched first."`
}

// AgentFetch configures the fetching of files.
type AgentFetch struct {
	Mode            string        `yaml:"mode" default:"auto" enum:"auto|lazy|eager" doc:"lazy starts a container with its profile's files; eager with all files; auto decides for each image by its size, the speed of the link and the profile."`
	OpenTimeout     time.Duration `yaml:"open_timeout" default:"60s" min:"1s" doc:"How long the open of a file that is not on this node may wait without progress before it fails with EIO."`
	ProfileTimeout  time.Duration `yaml:"profile_timeout" default:"10s" min:"0s" doc:"Longest time that the start of a container waits for its profile's files. The rest are fetched while it runs."`
	Streams         int           `yaml:"streams" default:"4" min:"1" doc:"Number of simultaneous requests to one registry."`
	Background      bool          `yaml:"background" default:"true" doc:"Fetches the rest of the image of a running container, so that the container no longer needs the registry."`
	BackgroundDelay time.Duration `yaml:"background_delay" default:"5s" min:"0s" doc:"How long after a container's start the background fetch begins. It pauses until nobody has waited for a file for two seconds, or for this delay if that is shorter."`
	BackgroundRate  Size          `yaml:"background_rate" default:"0" min:"0" doc:"Limit of the background fetch, in bytes per second. 0 means no limit."`
	ConvertTimeout  time.Duration `yaml:"convert_timeout" default:"2s" min:"0s" doc:"How long a pull waits for a layer that the registry is still converting. After that the layer is unpacked in the ordinary way."`
}

// AgentNode is what a node is called.
type AgentNode struct {
	Name   string            `yaml:"name" doc:"Name of this node. Empty means the host's name." example:"node-7"`
	Labels map[string]string `yaml:"labels" doc:"Labels by which orders select nodes." example:"zone: eu-1a"`
}

// AgentPeers configures the exchange of files with other nodes.
type AgentPeers struct {
	Listen     string `yaml:"listen" doc:"Address on which this node gives files to other nodes, and switch of the exchange: without it, files come from registries only. Connections are encrypted, and each request needs a grant of the registry." example:":5003"`
	Advertise  string `yaml:"advertise" doc:"IP address and port under which other nodes reach this one. Empty means the port of listen, at the address from which this node reaches the registry." example:"10.0.0.7:5003"`
	Zone       string `yaml:"zone" doc:"Zone of this node. Nodes of the same zone are preferred." example:"eu-1a"`
	Rack       string `yaml:"rack" doc:"Rack of this node in its zone. Nodes of the same rack are preferred to others of the zone." example:"r12"`
	UploadRate Size   `yaml:"upload_rate" default:"0" min:"0" doc:"Limit of what this node sends to other nodes, in bytes per second. 0 means no limit."`
	Uploads    int    `yaml:"uploads" default:"256" min:"1" doc:"Number of requests of other nodes that are answered at a time."`
}

// AgentProfiles configures start-up profiles.
type AgentProfiles struct {
	Record   bool          `yaml:"record" default:"true" doc:"Reports to the registry which files containers open first."`
	Duration time.Duration `yaml:"duration" default:"20s" min:"1s" doc:"How long a container's opens are watched after its start."`
	Siblings bool          `yaml:"siblings" doc:"While a start is watched, a missing file is fetched together with small files of its directory, as long as such guesses pay. This helps large images that nobody has started yet, and costs more than it gains for small images."`
}

// AgentKernel configures the use of kernel features.
type AgentKernel struct {
	Tier        string `yaml:"tier" default:"auto" enum:"auto|full|metacopy|loop|plain" doc:"How images are mounted. auto takes the best way that works. The others force one way; if it does not work, everything is unpacked, as with plain."`
	Passthrough bool   `yaml:"passthrough" default:"true" doc:"Lets the kernel read a fetched file itself, if it can."`
}

// AgentCRI configures the proxy of the image service.
type AgentCRI struct {
	Address    string `yaml:"address" doc:"Socket for kubelet's --image-service-endpoint. Empty switches the proxy off." example:"/run/slipway-agent/cri.sock"`
	Containerd string `yaml:"containerd" default:"/run/containerd/containerd.sock" doc:"Socket of containerd, to which every call is passed on."`
	// Whoever takes the disk away gets the credentials with it, so this is off by default.
	KeepCredentials bool `yaml:"keep_credentials" doc:"Keeps the credentials over a reboot, in a file of root that only root can read. By default they are on a tmpfs, and containers that start after a reboot cannot fetch files that the node does not have of images with a pull secret."`
}

// AgentVolumes configures volumes.
type AgentVolumes struct {
	Mode    string           `yaml:"mode" default:"local" enum:"local|network" doc:"local mounts an image once for all containers, which write to the node's disk; network gives each container a clone in the storage, which it writes to."`
	File    AgentVolumesFile `yaml:"file" doc:"Volumes as files of a shared directory."`
	RBD     AgentVolumesRBD  `yaml:"rbd" doc:"Volumes as images of a Ceph cluster. Needs the program that make build-ceph makes."`
	Outage  time.Duration    `yaml:"outage" default:"5m" min:"1s" doc:"How long containers wait for storage that does not answer. After that they get EIO."`
	Mapping string           `yaml:"mapping" default:"auto" enum:"auto|fuse|krbd|nbd" doc:"How an RBD image becomes a device: krbd, nbd, or fuse, which is a file that the agent serves; auto takes the first of these that works."`
}

// AgentVolumesFile configures volumes of a shared directory.
type AgentVolumesFile struct {
	Dir string `yaml:"dir" doc:"Where the directory is mounted on this node. Empty switches these volumes off." example:"/mnt/volumes"`
}

// AgentVolumesRBD configures volumes of a Ceph cluster.
type AgentVolumesRBD struct {
	Conf string `yaml:"conf" doc:"Configuration file of Ceph. It needs no key, because the registry gives the node one. Empty switches these volumes off." example:"/etc/ceph/ceph.conf"`
}

// Configured reports whether there may be volumes.
func (v *AgentVolumes) Configured() bool { return v.File.Dir != "" || v.RBD.Conf != "" }

// AgentChoice configures in which way images come to a node.
type AgentChoice struct {
	Default []string          `yaml:"default" doc:"The ways to try, of volume, gear and plain. Empty means gear and plain." example:"[volume, gear, plain]"`
	Rules   []AgentChoiceRule `yaml:"rules" doc:"Exceptions for some images. The first rule for an image applies."`
}

// AgentChoiceRule is an exception for some images.
type AgentChoiceRule struct {
	Images []string `yaml:"images" doc:"Patterns of images, registry and repository without a tag: * stands for any characters between slashes, ** for any number of parts between slashes. Empty means all." example:"registry.example.com/team/**"`
	Use    []string `yaml:"use" doc:"The ways to try." example:"volume"`
}

// These are the ways in which an image comes to a node.
const (
	WayVolume = "volume"
	WayGear   = "gear"
	WayPlain  = "plain"
)

// LoadAgent reads the file at path and overlays overrides. If path is empty, the file
// counts as empty. The error is Problems if the configuration is wrong. Warnings may come
// with or without an error.
func LoadAgent(path string, overrides []Override) (*Agent, Warnings, error) {
	if path == "" {
		return ParseAgent(eof{}, &Options{Name: "agent", Overrides: overrides})
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	return ParseAgent(f, &Options{Name: path, Overrides: overrides})
}

// ParseAgent is like LoadAgent, for text that is not in a file.
func ParseAgent(r io.Reader, o *Options) (*Agent, Warnings, error) {
	opts, rep, root, err := readTree(r, o)
	if err != nil {
		return nil, nil, err
	}
	a := &Agent{places: yamlfile.Places{}}
	yamlfile.SetDefaults(reflect.ValueOf(a).Elem())
	layers := &yamlfile.Overlay{Report: rep, Root: root, Type: reflect.TypeFor[Agent]()}
	layers.ApplyOverrides(opts.Overrides)
	d := &yamlfile.Decoder{Report: rep, Root: reflect.TypeFor[Agent](), Places: a.places,
		Expand: &yamlfile.Expander{Env: yamlfile.EnvMap(opts.Env), ReadFile: opts.ReadFile}}
	d.Value(root, reflect.ValueOf(a).Elem(), yamlfile.Field{}, "")
	v := &validator{Report: rep, places: a.places}
	v.tags(reflect.ValueOf(a).Elem(), "")
	v.agent(a)
	if err := rep.Err(); err != nil {
		return nil, rep.Warnings, err
	}
	a.complete()
	return a, rep.Warnings, nil
}

// maxRun is the length in bytes of the longest possible path of the directory of the
// agent's sockets. Linux limits the address of a socket to 107 bytes.
const maxRun = 107 - len("/snapshotter.sock")

// runDir returns the directory of the agent's sockets.
func (a *Agent) runDir() string {
	switch {
	case a.Run != "":
		return a.Run
	case a.Root == "/var/lib/slipway-agent":
		return "/run/slipway-agent"
	}
	return a.Root + "/run"
}

// complete fills in values that depend on other keys.
func (a *Agent) complete() {
	a.Run = a.runDir()
	if a.Address == "" {
		a.Address = a.Run + "/snapshotter.sock"
	}
	for i := range a.Registries {
		if r := &a.Registries[i]; len(r.URLs) == 0 {
			r.URLs = []string{"https://" + r.Host}
		}
	}
	if len(a.Choice.Default) == 0 {
		a.Choice.Default = []string{WayGear, WayPlain}
	}
}

func (v *validator) agent(a *Agent) {
	if !strings.HasPrefix(a.Root, "/") {
		v.bad("root", "must be an absolute path")
	}
	if a.Run != "" && !strings.HasPrefix(a.Run, "/") {
		v.bad("run", "must be an absolute path")
	}
	if strings.ContainsAny(a.Root, ",:\\ \t\n") {
		v.bad("root", "has a comma, colon, backslash or blank, which options of mounts cannot hold: choose another directory")
	}
	if n := len(a.runDir()); n > maxRun {
		v.bad("run", fmt.Sprintf("has %d bytes, and sockets in it can be made for %d: choose a shorter directory (the default lies below root)", n, maxRun))
	}
	if a.Metrics.Addr != "" {
		v.check("metrics.addr", checkAddr("tcp", a.Metrics.Addr))
		if !a.Metrics.InsecureOpenToNetwork && beyondLoopback("tcp", a.Metrics.Addr) {
			v.bad("metrics.addr", "is reachable from other machines, and nobody is asked for a password: listen on 127.0.0.1, put a proxy in front, or set metrics.insecure_open_to_network")
		}
	}
	v.agentVolumes(a)
	v.check("node.labels", warm.CheckLabels(a.Node.Labels))
	v.agentPeers(&a.Peers)
	hosts := map[string]bool{}
	for i := range a.Registries {
		r, key := &a.Registries[i], fmt.Sprintf("registries[%d]", i)
		switch {
		case r.Host == "":
			v.bad(key+".host", "is missing")
		case strings.Contains(r.Host, "/"):
			v.bad(key+".host", "must be a name as in images, without a scheme or path; urls says where it is")
		case hosts[r.Host]:
			v.bad(key+".host", "has settings already")
		}
		hosts[r.Host] = true
		for j, u := range r.URLs {
			at := fmt.Sprintf("%s.urls[%d]", key, j)
			v.check(at, checkURL(u))
			if rest, plain := strings.CutPrefix(u, "http://"); plain && !r.InsecureAllowPlaintext && beyondLoopback("tcp", hostPort(rest)) {
				v.bad(at, "would carry images and passwords in the clear: use https, or say insecure_allow_plaintext: true")
			}
		}
		if (r.Certificate == "") != (r.Key == "") {
			v.bad(key+".certificate", "and key go together: one of them is missing")
		}
		if (r.Username == "") != (r.Password == "") {
			v.bad(key+".username", "and password go together: one of them is missing")
		}
	}
}

func (v *validator) agentPeers(p *AgentPeers) {
	if p.Listen != "" {
		v.check("peers.listen", checkAddr("tcp", p.Listen))
	}
	if p.Advertise == "" {
		return
	}
	if at, err := netip.ParseAddrPort(p.Advertise); err != nil || at.Port() == 0 || at.Addr().IsUnspecified() {
		v.bad("peers.advertise", "must be an IP address and a port, as in 10.0.0.7:5003 or [fd00::7]:5003")
	}
}

func (v *validator) agentVolumes(a *Agent) {
	for key, name := range map[string]string{"volumes.file.dir": a.Volumes.File.Dir, "volumes.rbd.conf": a.Volumes.RBD.Conf} {
		if name != "" && !strings.HasPrefix(name, "/") {
			v.bad(key, "must be an absolute path")
		}
	}
	v.ways("choice.default", a.Choice.Default)
	for i, r := range a.Choice.Rules {
		key := fmt.Sprintf("choice.rules[%d]", i)
		for j, p := range r.Images {
			for part := range strings.SplitSeq(p, "/") {
				if _, err := path.Match(part, ""); part == "" || err != nil {
					v.bad(fmt.Sprintf("%s.images[%d]", key, j), "matches no image: it is REGISTRY/REPOSITORY with * and ** for parts of it")
					break
				}
			}
		}
		if len(r.Use) == 0 {
			v.bad(key+".use", "is missing: a list of volume, gear and plain")
		}
		v.ways(key+".use", r.Use)
	}
}

// ways checks a list of ways in which images come.
func (v *validator) ways(key string, list []string) {
	for i, w := range list {
		switch {
		case w != WayVolume && w != WayGear && w != WayPlain:
			v.bad(fmt.Sprintf("%s[%d]", key, i), "must be volume, gear or plain")
		case w == WayPlain && i != len(list)-1:
			v.bad(fmt.Sprintf("%s[%d]", key, i), "always works, so what follows it would never be tried: put it last")
		}
	}
}

// hostPort returns the address in the part of a URL after its scheme.
func hostPort(rest string) string {
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, ':'); i < 0 || strings.HasSuffix(host, "]") {
		return host + ":80"
	}
	return host
}

// AgentExample returns a configuration file of an agent with every key, its meaning and
// its default.
func AgentExample() string {
	a := &Agent{}
	yamlfile.SetDefaults(reflect.ValueOf(a).Elem())
	return yamlfile.ExampleOf(reflect.ValueOf(a).Elem(), "Configuration of the Slipway node agent, with every key and its default.",
		"Keys that are commented out have none.")
}

// Redacted returns the configuration as a YAML file without its secrets.
func (a Agent) Redacted() ([]byte, error) { return yamlfile.RedactedYAML(reflect.ValueOf(a)) }

// String implements fmt.Stringer with Redacted.
func (a Agent) String() string {
	b, err := a.Redacted()
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// GoString implements fmt.GoStringer with Redacted.
func (a Agent) GoString() string { return a.String() }
