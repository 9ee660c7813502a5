package auth

import (
	"errors"
	"net/http"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth/ldap"
	"example.org/slipway/registry/auth/recent"
)

// directorySource is the name of the source of LDAP users' groups. It is also the prefix
// of these users' names.
const directorySource = "ldap"

// addDirectory adds a method for the users of an LDAP directory.
func (a *Auth) addDirectory(cfg *ldap.Config, failures *recent.Failures, o Options) (err error) {
	if cfg == nil {
		return nil
	}
	a.directory, err = ldap.New(*cfg, ldap.Options{Failures: failures, Logger: o.Logger, Clock: o.Clock})
	var m *ldap.Mistake
	if errors.As(err, &m) {
		return mistake("auth.ldap."+m.Key, "%w", m.Err)
	}
	return err
}

// inDirectory authenticates a user of the LDAP directory.
func (a *Auth) inDirectory(r *http.Request, name, password string) (*Identity, error) {
	u, err := a.directory.Verify(r.Context(), oci.ClientOf(r.RemoteAddr), name, password)
	if err != nil {
		return nil, err
	}
	return &Identity{Name: directorySource + ":" + u.Name, Groups: groupsOf(directorySource, u.Groups), Method: MethodLDAP}, nil
}
