package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"example.org/slipway/oci"
)

// Replication is a rule by which images are copied to or from another registry.
type Replication struct {
	Name         string            `yaml:"name" doc:"Name of the rule, for messages, metrics and slipway replicate." example:"to-frankfurt"`
	Direction    string            `yaml:"direction" default:"push" enum:"push|pull" doc:"push copies images of this registry to the other one, pull copies images of the other registry to this one."`
	URL          string            `yaml:"url" doc:"URL of the other registry." example:"https://frankfurt.example.com"`
	Username     string            `yaml:"username" doc:"User name at the other registry." example:"replicator"`
	Password     Secret            `yaml:"password" doc:"Password or token at the other registry." example:"${file:/run/secrets/frankfurt}"`
	DockerConfig string            `yaml:"docker_config" doc:"Path of a config.json, as docker login writes it, with the credentials; the credential helpers that it names are run. It excludes username and password."`
	Command      CredentialCommand `yaml:"credential_command" doc:"A command that prints the password, for registries whose passwords expire."`
	TLS          UpstreamTLS       `yaml:"tls" doc:"Encryption towards the other registry."`
	Repositories []string          `yaml:"repositories" doc:"Patterns of repositories, as in storage.immutable_tags, by their names at the source. Empty means all. Without * and ?, the source is not asked for a list of its repositories, which some registries do not have." example:"team/**"`
	Tags         []string          `yaml:"tags" doc:"Regular expressions, one of which must match a tag as a whole. Empty means all. Signatures follow their image in any case." example:"v[0-9.]+"`
	Prefix       string            `yaml:"prefix" doc:"Is put before the names at the destination, with a slash between: team/app becomes berlin/team/app. A repository whose name has the prefix already is not copied." example:"berlin"`
	OnPush       bool              `yaml:"on_push" doc:"True copies what is pushed at once, for direction: push. What cannot be copied is kept and tried again until it succeeds."`
	Every        time.Duration     `yaml:"every" min:"0s" doc:"Time between two runs, which compare both sides and copy what differs. 0 means that only slipway replicate starts one." example:"1h"`
	Referrers    bool              `yaml:"referrers" default:"true" doc:"Copies signatures, SBOMs and whatever else refers to an image with it."`
	Delete       bool              `yaml:"delete" doc:"True repeats deletions. With direction: push and on_push, what is deleted here is deleted there, by clients or by retention. With direction: pull, a run deletes the tags that this rule has set here and the source does not have any more."`
}

// replicationValues checks the rules of replication.
func (v *validator) replicationValues(list []Replication) {
	names := map[string]bool{}
	for i := range list {
		r := &list[i]
		key := fmt.Sprintf("replication[%d]", i)
		switch {
		case r.Name == "":
			v.bad(key+".name", "is missing")
		case !validUpstreamName(r.Name):
			v.bad(key+".name", "must be lower-case letters and digits with single dots, hyphens or underscores between them")
		case names[r.Name]:
			v.bad(key+".name", "is the name of another rule too")
		}
		names[r.Name] = true
		v.check(key+".url", checkUpstreamURL(r.URL))
		v.credentials(key, r.Remote())
		if (r.TLS.Certificate == "") != (r.TLS.Key == "") {
			v.bad(key+".tls", "has one of certificate and key: a client certificate needs both")
		}
		v.patterns(key+".repositories", r.Repositories)
		v.regexps(key+".tags", r.Tags)
		if r.Prefix != "" && !oci.ValidName(r.Prefix) {
			v.bad(key+".prefix", "must be the beginning of a repository name, without a slash at its end")
		}
		if r.OnPush && r.Direction == "pull" {
			v.bad(key+".on_push", "works only with direction: push; the other registry does not say what is pushed to it, so use every")
		}
		if r.Delete && r.Direction == "push" && !r.OnPush {
			v.bad(key+".delete", "needs on_push: a deletion is repeated when it happens")
		}
		if r.TLS.InsecureSkipVerify && strings.HasPrefix(r.URL, "http://") {
			v.bad(key+".tls.insecure_skip_verify", "has no meaning with an http URL")
		}
	}
}

// replicationWarnings adds warnings about rules of replication.
func (v *validator) replicationWarnings(list []Replication, warn func(key, reason string)) {
	for i := range list {
		r := &list[i]
		key := fmt.Sprintf("replication[%d]", i)
		if r.Every == 0 && !r.OnPush {
			warn(key, "only slipway replicate "+r.Name+" copies anything: neither every nor on_push is set")
		}
		if at, err := url.Parse(r.URL); err == nil && at.Scheme == "http" && r.Remote().Credentialed() && !loopbackHost(at.Hostname()) {
			warn(key+".url", "credentials cross the network in clear: it is not https")
		}
	}
}

// Remote returns the other registry as an upstream, which has the same credentials.
func (r *Replication) Remote() *Upstream {
	return &Upstream{Name: r.Name, URL: r.URL, Username: r.Username, Password: r.Password, DockerConfig: r.DockerConfig, Command: r.Command, TLS: r.TLS}
}

// Listed returns the repositories of a rule if they are known without a list, or nil.
func (r *Replication) Listed() []string {
	for _, p := range r.Repositories {
		if strings.ContainsAny(p, "*?") {
			return nil
		}
	}
	return r.Repositories
}
