package command

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/imagecopy"
)

// RegistryFlags says how to reach a registry.
type RegistryFlags struct {
	plainHTTP, Insecure bool
	UserFile            string
}

// Open parses REGISTRY[/REPOSITORY[:TAG|@DIGEST]] and opens the registry.
func (f *RegistryFlags) Open(s string) (*client.Client, []imagecopy.Image, error) {
	url, path := f.Address(s)
	o := &client.Options{DockerConfig: f.UserFile == "", InsecureSkipVerify: f.Insecure, Logger: slog.Default()}
	var err error
	if o.Username, o.Password, err = f.User(); err != nil {
		return nil, nil, err
	}
	c, err := client.New(url, o)
	if err != nil || path == "" {
		return c, nil, err
	}
	img := imagecopy.Image{From: path}
	if repo, d, ok := strings.Cut(path, "@"); ok {
		img.From, img.References = repo, []string{d}
	} else if i := strings.LastIndexByte(path, ':'); i > 0 {
		img.From, img.References = path[:i], []string{path[i+1:]}
	}
	return c, []imagecopy.Image{img}, nil
}

// Address splits an address into a registry's URL and the path after it.
func (f *RegistryFlags) Address(s string) (url, path string) {
	scheme := ""
	for _, known := range []string{"http", "https", "docker"} {
		if rest, ok := strings.CutPrefix(s, known+"://"); ok {
			scheme, s = known, rest
		}
	}
	host, path, _ := strings.Cut(s, "/")
	switch {
	case scheme == "http" || scheme == "https":
	case f.plainHTTP || client.IsLoopback(host) && !f.Insecure:
		scheme = "http"
	default:
		scheme = "https"
	}
	return scheme + "://" + host, path
}

// User reads the file of the flag --credentials, if that is set.
func (f *RegistryFlags) User() (name, password string, err error) {
	if f.UserFile == "" {
		return "", "", nil
	}
	b, err := os.ReadFile(f.UserFile)
	if err != nil {
		return "", "", err
	}
	name, password, ok := strings.Cut(strings.TrimSpace(string(b)), ":")
	if !ok {
		return "", "", fmt.Errorf("%s does not hold user:password", f.UserFile)
	}
	return name, password, nil
}

// AddTo adds the flags of a command that reaches one registry. who is the name of the registry
// in the help text.
func (f *RegistryFlags) AddTo(fl *pflag.FlagSet, who, pronoun string) {
	f.AddConnection(fl, who, pronoun)
	fl.StringVar(&f.UserFile, "credentials", "", "file with user:password for "+who+" (default: docker's own configuration)")
}

// AddConnection adds the flags of AddTo that say how to connect.
func (f *RegistryFlags) AddConnection(fl *pflag.FlagSet, who, pronoun string) {
	fl.BoolVar(&f.plainHTTP, "plain-http", false, who+" speaks HTTP (the default for this machine's own addresses, unless "+pronoun+" is written with https://)")
	fl.BoolVar(&f.Insecure, "insecure", false, who+" speaks HTTPS, and its certificate is not checked")
}

// AddToMany adds the flags of a command that reaches several registries.
func (f *RegistryFlags) AddToMany(fl *pflag.FlagSet) {
	fl.BoolVar(&f.plainHTTP, "plain-http", false, "registries speak HTTP (the default for this machine's own addresses, unless written with https://)")
	fl.BoolVar(&f.Insecure, "insecure", false, "registries speak HTTPS, and their certificates are not checked")
	fl.StringVar(&f.UserFile, "credentials", "", "file with user:password for registries (default: docker's own configuration)")
}
