package config

import "fmt"

// SignatureKey is a public key with which signatures of images are verified.
type SignatureKey struct {
	Name         string   `yaml:"name" doc:"Name of the key, as the page shows it." example:"release"`
	Key          string   `yaml:"key" doc:"PEM file of the public key, such as cosign.pub." example:"/etc/slipway/release.pub"`
	Repositories []string `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags, whose images this key signs. Empty means all." example:"team/**"`
}

// signatureValues checks the keys for signatures.
func (v *validator) signatureValues(list []SignatureKey) {
	names := map[string]bool{}
	for i, k := range list {
		at := fmt.Sprintf("signatures[%d]", i)
		switch {
		case k.Name == "":
			v.bad(at+".name", "is missing")
		case names[k.Name]:
			v.bad(at+".name", "is the name of another key too")
		}
		names[k.Name] = true
		if k.Key == "" {
			v.bad(at+".key", "is missing")
		}
		v.patterns(at+".repositories", k.Repositories)
	}
}
