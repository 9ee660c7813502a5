package ldap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	client "github.com/go-ldap/ldap/v3"

	"example.org/slipway/oci/wire"
	"example.org/slipway/registry/auth/passwords"
)

const (
	// maxName bounds the names of users and groups, in bytes.
	maxName = 256
	// maxGroups bounds the groups of a user.
	maxGroups = 1000
)

// server is a directory's server, and how it is asked. It is immutable.
type server struct {
	cfg       Config
	addr      string
	encrypt   *tls.Config // nil: plaintext
	groupBase *client.DN
}

func newServer(cfg Config) (*server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, &Mistake{"url", err}
	}
	s := &server{cfg: cfg}
	port := client.DefaultLdapPort
	if u.Scheme == "ldaps" {
		port = client.DefaultLdapsPort
	}
	if p := u.Port(); p != "" {
		port = p
	}
	s.addr = net.JoinHostPort(u.Hostname(), port)
	if u.Scheme == "ldaps" || cfg.StartTLS {
		s.encrypt = &tls.Config{ServerName: u.Hostname()}
		if cfg.CA != "" {
			if s.encrypt.RootCAs, err = wire.Pool(cfg.CA); err != nil {
				return nil, &Mistake{"ca", err}
			}
		}
	}
	if s.groupBase, err = client.ParseDN(cfg.GroupBase); err != nil {
		return nil, &Mistake{"group_base", err}
	}
	return s, nil
}

// step is a step of a login that failed, with the configuration keys that it depends on.
type step struct {
	what, keys string
	err        error
}

// Error implements error.
func (s *step) Error() string { return s.what + ": " + s.err.Error() }

// Unwrap returns the cause.
func (s *step) Unwrap() error { return s.err }

// login checks the password of the user with a name, and returns the user. The error is
// passwords.ErrWrong if the directory says that the password is wrong, or if no user has
// the name.
func (s *server) login(ctx context.Context, name, password string) (*User, error) {
	deadline := time.Now().Add(s.cfg.Timeout)
	c, err := s.dial(ctx, deadline)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	u, err := s.loginBy(c, name, password)
	if err != nil && !errors.Is(err, passwords.ErrWrong) && !time.Now().Before(deadline) {
		return nil, fmt.Errorf("no answer within %v: %w", s.cfg.Timeout, err)
	}
	return u, err
}

func (s *server) loginBy(c *conn, name, password string) (*User, error) {
	e, err := s.find(c, name)
	if err != nil {
		return nil, err
	}
	// The password of an unknown user is tried, too, so that this takes as long as for a
	// known one. It is unlikely that the entry exists, and the answer does not count.
	dn, known := e.dn, e.dn != ""
	if !known {
		dn = s.cfg.UserAttribute + "=" + client.EscapeDN(name) + "," + s.cfg.UserBase
	}
	switch err := c.Bind(dn, password); {
	case err != nil && !refused(err):
		return nil, &step{"bind as the user", "url", err}
	case err != nil || !known:
		return nil, passwords.ErrWrong
	}
	groups, err := s.groups(c, name, e)
	if err != nil {
		return nil, err
	}
	return &User{Name: e.name, Groups: groups}, nil
}

// refused reports whether a directory's answer to a user's password is about the user, and not
// about the directory: wrong password, no such entry, locked or disabled.
func refused(err error) bool {
	return client.IsErrorAnyOf(err, client.LDAPResultInvalidCredentials, client.LDAPResultNoSuchObject, client.LDAPResultInvalidDNSyntax,
		client.LDAPResultConstraintViolation, client.LDAPResultInappropriateAuthentication,
		client.LDAPResultInsufficientAccessRights, client.LDAPResultUnwillingToPerform)
}

// conn is a connection that is used for one login.
type conn struct {
	*client.Conn
	stop func() bool
}

// Close closes the connection.
func (c *conn) Close() {
	c.stop()
	_ = c.Conn.Close() // all answers have arrived
}

// dial connects, and encrypts the connection if that is configured.
func (s *server) dial(ctx context.Context, deadline time.Time) (*conn, error) {
	dialer := net.Dialer{Deadline: deadline}
	raw, err := dialer.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, &step{"connect", "url", err}
	}
	if err := raw.SetDeadline(deadline); err != nil {
		raw.Close()
		return nil, &step{"connect", "url", err}
	}
	// If the request ends, so does all waiting for the directory.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	link, encrypted := net.Conn(raw), s.encrypt != nil && !s.cfg.StartTLS
	if encrypted {
		t := tls.Client(raw, s.encrypt)
		if err := t.HandshakeContext(ctx); err != nil {
			stop()
			raw.Close()
			return nil, &step{"encrypt the connection", "ca", err}
		}
		link = t
	}
	c := &conn{client.NewConn(link, encrypted), stop}
	c.SetTimeout(time.Until(deadline) + time.Second) // the deadline comes first
	c.Start()
	if s.cfg.StartTLS {
		if err := c.StartTLS(s.encrypt); err != nil {
			c.Close()
			return nil, &step{"encrypt the connection with StartTLS", "start_tls, ca", err}
		}
	}
	return c, nil
}

// entry is what is known of a user's entry.
type entry struct {
	dn       string // empty: no user has the name
	name     string
	memberOf []string
}

// find returns the entry of the user with a name.
func (s *server) find(c *conn, name string) (entry, error) {
	if s.cfg.UserDN != "" {
		return entry{dn: s.cfg.userDN(name), name: strings.ToLower(name)}, nil
	}
	if err := s.bindSearcher(c); err != nil {
		return entry{}, err
	}
	r, err := c.Search(&client.SearchRequest{
		BaseDN: s.cfg.UserBase, Scope: client.ScopeWholeSubtree, SizeLimit: 2, EnforceSizeLimit: true,
		Filter: fill(s.cfg.UserFilter, name, ""), Attributes: s.userAttributes(),
	})
	if client.IsErrorWithCode(err, client.LDAPResultSizeLimitExceeded) || errors.Is(err, client.ErrSizeLimitExceeded) || err == nil && len(r.Entries) > 1 {
		return entry{}, fmt.Errorf("%w: auth.ldap.user_filter finds more than one entry for the name", passwords.ErrWrong)
	}
	if err != nil {
		return entry{}, &step{"search for the user", "user_base, user_filter", err}
	}
	if len(r.Entries) == 0 {
		return entry{}, nil
	}
	found := r.Entries[0]
	e := entry{dn: found.DN, memberOf: found.GetEqualFoldAttributeValues(s.cfg.MemberOf)}
	// An entry may have several names.
	names := found.GetEqualFoldAttributeValues(s.cfg.UserAttribute)
	if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, name) }); i > 0 {
		names = names[i:]
	}
	if len(names) == 0 || !plain(names[0]) {
		return entry{}, fmt.Errorf("%w: the entry %s has no usable %s (auth.ldap.user_attribute)", passwords.ErrWrong, e.dn, s.cfg.UserAttribute)
	}
	e.name = names[0]
	return e, nil
}

func (s *server) userAttributes() []string {
	if s.cfg.MemberOf == "" {
		return []string{s.cfg.UserAttribute}
	}
	return []string{s.cfg.UserAttribute, s.cfg.MemberOf}
}

// bindSearcher binds the connection as BindDN, if there is one.
func (s *server) bindSearcher(c *conn) error {
	if s.cfg.BindDN == "" {
		return nil
	}
	password, err := s.cfg.bindPassword()
	if err != nil {
		return &step{"bind as " + s.cfg.BindDN, "bind_password_file", err}
	}
	if err := c.Bind(s.cfg.BindDN, password); err != nil {
		return &step{"bind as " + s.cfg.BindDN, "bind_dn, bind_password_file", err}
	}
	return nil
}

// groups returns the names of a user's groups. The connection is bound as the user.
func (s *server) groups(c *conn, name string, e entry) ([]string, error) {
	if s.cfg.GroupBase == "" {
		return nil, nil
	}
	if s.cfg.MemberOf != "" {
		return s.memberOf(c, e)
	}
	if err := s.bindSearcher(c); err != nil {
		return nil, err
	}
	r, err := c.Search(&client.SearchRequest{
		BaseDN: s.cfg.GroupBase, Scope: client.ScopeWholeSubtree, SizeLimit: maxGroups, EnforceSizeLimit: true,
		Filter: fill(s.cfg.GroupFilter, name, e.dn), Attributes: []string{s.cfg.GroupAttribute},
	})
	if err != nil {
		return nil, &step{"search for the groups of the user", "group_base, group_filter", err}
	}
	var names []string
	for _, g := range r.Entries {
		names = append(names, g.GetEqualFoldAttributeValues(s.cfg.GroupAttribute)...)
	}
	return usable(names), nil
}

// memberOf returns the names of the groups that a user's entry names.
func (s *server) memberOf(c *conn, e entry) ([]string, error) {
	if s.cfg.UserDN != "" {
		r, err := c.Search(&client.SearchRequest{
			BaseDN: e.dn, Scope: client.ScopeBaseObject, SizeLimit: 1, EnforceSizeLimit: true,
			Filter: "(objectClass=*)", Attributes: []string{s.cfg.MemberOf},
		})
		if err != nil {
			return nil, &step{"read the entry of the user", "member_of", err}
		}
		for _, found := range r.Entries {
			e.memberOf = found.GetEqualFoldAttributeValues(s.cfg.MemberOf)
		}
	}
	var names []string
	for _, text := range e.memberOf {
		dn, err := client.ParseDN(text)
		if err != nil || len(dn.RDNs) == 0 || !s.groupBase.AncestorOfFold(dn) {
			continue
		}
		for _, a := range dn.RDNs[0].Attributes {
			if strings.EqualFold(a.Type, s.cfg.GroupAttribute) {
				names = append(names, a.Value)
			}
		}
	}
	return usable(names), nil
}

// usable returns the names that groups can have, in order and each once.
func usable(names []string) []string {
	names = slices.DeleteFunc(names, func(n string) bool { return !plain(n) })
	slices.Sort(names)
	return slices.Compact(names)
}

// plain reports whether a user or a group can have a name. Directories ignore spaces at
// the ends, and several in a row, so a name with such spaces could stand for another
// name.
func plain(name string) bool {
	return name != "" && len(name) <= maxName && utf8.ValidString(name) && name == strings.Join(strings.Fields(name), " ") &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// advice says what to do about an error of login.
func advice(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var s *step
	switch {
	case errors.As(err, &unknown) || strings.Contains(err.Error(), "unknown authority"): // the client library drops the type
		return "name the certificate of the server's authority in auth.ldap.ca"
	case errors.As(err, &host) || strings.Contains(err.Error(), "certificate is valid for"):
		return "use a name in auth.ldap.url that is in the server's certificate"
	case client.IsErrorAnyOf(err, client.LDAPResultConfidentialityRequired, client.LDAPResultStrongAuthRequired):
		return "the server wants an encrypted connection: set auth.ldap.start_tls, or use ldaps:// in auth.ldap.url"
	case errors.As(err, &s):
		return "check auth.ldap." + strings.ReplaceAll(s.keys, ", ", ", auth.ldap.") + ", and that the server is up"
	}
	return "check auth.ldap.url, and that the server is up"
}
