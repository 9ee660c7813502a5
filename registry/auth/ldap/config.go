package ldap

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	client "github.com/go-ldap/ldap/v3"
)

// DefaultTimeout is the default of [Config].Timeout.
const DefaultTimeout = 5 * time.Second

// Config says how a directory is asked. In UserDN and in the filters, {user} stands for the
// name that the client gave, and in GroupFilter {dn} stands for the distinguished name (DN) of
// the user's entry. Both are escaped.
type Config struct {
	// URL is ldaps://host or ldap://host, with or without a port.
	URL string `yaml:"url"`
	// StartTLS encrypts an ldap:// connection before anything else is sent.
	StartTLS bool `yaml:"start_tls,omitempty"`
	// CA is a PEM file of the authorities that the server's certificate is checked against.
	// Default: those of the system.
	CA string `yaml:"ca,omitempty"`
	// InsecurePlaintext permits connections without encryption to other machines.
	InsecurePlaintext bool `yaml:"insecure_plaintext,omitempty"`
	// Timeout bounds one login, from the connection to the last answer. Default: 5s.
	Timeout time.Duration `yaml:"timeout,omitempty"`

	// BindDN is the DN of the entry that searches. Its password is in BindPasswordFile,
	// which is read for each connection. By default, users are searched for anonymously,
	// and their groups are searched for by the users themselves.
	BindDN           string `yaml:"bind_dn,omitempty"`
	BindPasswordFile string `yaml:"bind_password_file,omitempty"`

	// UserBase is the entry below which UserFilter searches for users. By default the
	// filter is (uid={user}).
	UserBase   string `yaml:"user_base,omitempty"`
	UserFilter string `yaml:"user_filter,omitempty"`
	// UserAttribute is the attribute of an entry that has the user's name. Default: uid.
	UserAttribute string `yaml:"user_attribute,omitempty"`
	// UserDN is the DN of a user, such as uid={user},ou=people,dc=example,dc=org. If it
	// is set, users are not searched for. The user's name is then the name that the
	// client gave, in lower case.
	UserDN string `yaml:"user_dn,omitempty"`

	// GroupBase is the entry below which groups are. By default users have no groups.
	GroupBase string `yaml:"group_base,omitempty"`
	// GroupFilter finds the groups of a user. Default: (member={dn}).
	GroupFilter string `yaml:"group_filter,omitempty"`
	// GroupAttribute is the attribute of a group that has its name. Default: cn.
	GroupAttribute string `yaml:"group_attribute,omitempty"`
	// MemberOf is the attribute of a user's entry that has the DNs of the user's groups,
	// such as memberOf. If it is set, groups are not searched for. Groups that are not
	// below GroupBase do not count.
	MemberOf string `yaml:"member_of,omitempty"`
}

// Mistake is a mistake in a Config, or in a file that the Config names.
type Mistake struct {
	// Key is the key with the mistake.
	Key string
	Err error
}

// Error implements error.
func (m *Mistake) Error() string { return m.Key + ": " + m.Err.Error() }

// Unwrap returns Err.
func (m *Mistake) Unwrap() error { return m.Err }

func mistake(key, format string, args ...any) error {
	return &Mistake{key, fmt.Errorf(format, args...)}
}

// withDefaults returns c with its defaults filled in.
func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.UserAttribute = cmp.Or(c.UserAttribute, "uid")
	c.GroupAttribute = cmp.Or(c.GroupAttribute, "cn")
	if c.UserDN == "" {
		c.UserFilter = cmp.Or(c.UserFilter, "(uid={user})")
	}
	if c.GroupBase != "" && c.MemberOf == "" {
		c.GroupFilter = cmp.Or(c.GroupFilter, "(member={dn})")
	}
	return c
}

// check reports what is wrong with c, which has its defaults.
func (c *Config) check() error {
	if err := c.checkServer(); err != nil {
		return err
	}
	if err := c.checkKeys(); err != nil {
		return err
	}
	for _, dn := range []struct{ key, text string }{
		{"bind_dn", c.BindDN}, {"user_base", c.UserBase}, {"group_base", c.GroupBase}, {"user_dn", c.userDN("name")},
	} {
		if _, err := client.ParseDN(dn.text); err != nil {
			return mistake(dn.key, "%q is not a distinguished name: %w", dn.text, err)
		}
	}
	for _, f := range []struct{ key, text string }{
		{"user_filter", c.UserFilter}, {"group_filter", c.GroupFilter},
	} {
		if f.text == "" {
			continue
		}
		if _, err := client.CompileFilter(fill(f.text, "name", "cn=name")); err != nil {
			return mistake(f.key, "%q is not a filter: %w", f.text, err)
		}
	}
	return nil
}

// checkServer checks the keys that say which server is asked, and how it is reached.
func (c *Config) checkServer() error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "ldap" && u.Scheme != "ldaps" {
		return mistake("url", "is not of the form ldaps://host or ldap://host")
	}
	encrypted := u.Scheme == "ldaps" || c.StartTLS
	switch {
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return mistake("url", "has more than the server: write the rest as bind_dn, user_base and user_filter")
	case u.Scheme == "ldaps" && c.StartTLS:
		return mistake("start_tls", "is for ldap://: a connection of ldaps:// is encrypted from its beginning")
	case !encrypted && !c.InsecurePlaintext && !loopback(u.Hostname()):
		return mistake("url", "passwords would cross the network in clear: set start_tls: true, or use ldaps://; insecure_plaintext: true permits it all the same")
	case !encrypted && c.CA != "":
		return mistake("ca", "is of no use without encryption: set start_tls: true, or use ldaps://")
	case c.Timeout < 0:
		return mistake("timeout", "is negative")
	}
	return nil
}

// checkKeys checks that the keys that are set fit together.
func (c *Config) checkKeys() error {
	has := func(text, place string) bool { return strings.Contains(text, place) }
	switch {
	case (c.BindDN == "") != (c.BindPasswordFile == ""):
		return mistake("bind_dn", "bind_dn and bind_password_file need each other")
	case c.UserDN == "" && c.UserBase == "":
		return mistake("user_base", "is missing: say below which entry users are, or set user_dn")
	case c.UserDN != "" && (c.UserBase != "" || c.UserFilter != ""):
		return mistake("user_dn", "excludes user_base and user_filter, because nobody is searched for")
	case c.UserDN != "" && !has(c.UserDN, "{user}"):
		return mistake("user_dn", "has no {user}, so every user would have the same entry")
	case c.UserDN == "" && !has(c.UserFilter, "{user}"):
		return mistake("user_filter", "has no {user}, so every user would have the same entry")
	case c.GroupBase == "" && (c.GroupFilter != "" || c.MemberOf != ""):
		return mistake("group_base", "is missing: say below which entry groups are")
	case c.GroupFilter != "" && c.MemberOf != "":
		return mistake("member_of", "excludes group_filter, because groups are not searched for")
	case c.GroupFilter != "" && !has(c.GroupFilter, "{user}") && !has(c.GroupFilter, "{dn}"):
		return mistake("group_filter", "has neither {dn} nor {user}, so every user would have the same groups")
	}
	if c.BindPasswordFile != "" {
		if _, err := c.bindPassword(); err != nil {
			return &Mistake{"bind_password_file", err}
		}
	}
	return nil
}

// bindPassword reads the password of BindDN. A line break at its end does not count.
func (c *Config) bindPassword() (string, error) {
	b, err := os.ReadFile(c.BindPasswordFile)
	if err != nil {
		return "", fmt.Errorf("read the password of bind_dn: %w", err)
	}
	password := strings.TrimRight(string(b), "\r\n")
	if password == "" {
		return "", errors.New("the file with the password of bind_dn is empty")
	}
	return password, nil
}

// fill puts a user's name and DN into a filter.
func fill(filter, user, dn string) string {
	return strings.NewReplacer("{user}", client.EscapeFilter(user), "{dn}", client.EscapeFilter(dn)).Replace(filter)
}

// userDN returns the DN of the user with a name, by the configured form.
func (c *Config) userDN(name string) string {
	return strings.ReplaceAll(c.UserDN, "{user}", client.EscapeDN(name))
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
